# trunkline_folder(NAME USES target... [WITHOUT regex]): the one target of src/NAME, trunkline_NAME, from the .cc files
# there (but those that match), and NAME_test from the *_test.cc files beside them.
set(TRUNKLINE_SANITIZE "" CACHE STRING "Sanitizers, as in -fsanitize=")

add_library(trunkline_options INTERFACE)
target_compile_options(trunkline_options INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Werror)
if(TRUNKLINE_SANITIZE)
  # A finding ends the program. g++ sees uninitialized values that are none in code that it has instrumented itself.
  target_compile_options(trunkline_options INTERFACE -fsanitize=${TRUNKLINE_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -Wno-maybe-uninitialized)
  target_compile_definitions(trunkline_options INTERFACE _GLIBCXX_ASSERTIONS)
  target_link_options(trunkline_options INTERFACE -fsanitize=${TRUNKLINE_SANITIZE})
endif()

function(trunkline_folder name)
  cmake_parse_arguments(ARG "" "WITHOUT" "USES;TEST_USES" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
  if(ARG_WITHOUT)
    list(FILTER sources EXCLUDE REGEX "${ARG_WITHOUT}")
  endif()
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$|main\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(sources)
    add_library(trunkline_${name} STATIC ${sources})
    set(visibility PUBLIC)
  else()
    add_library(trunkline_${name} INTERFACE)
    set(visibility INTERFACE)
  endif()
  target_include_directories(trunkline_${name} ${visibility} ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(trunkline_${name} ${visibility} trunkline_options ${ARG_USES})
  if(tests)
    trunkline_test(${name}_test SOURCES ${tests} USES trunkline_${name} ${ARG_TEST_USES} LABELS ${name})
  endif()
endfunction()

# trunkline_test(NAME SOURCES file... USES target... [LABELS label...] [TIMEOUT seconds]): a GoogleTest program whose
# cases ctest sees one by one. Golden cases and other inputs lie in tests/; the programs under test in the build folder.
# Labels: the folder's name, for unit tests; `slow` for what the sanitizers leave out (CONTRIBUTING.md).
function(trunkline_test name)
  if(NOT TRUNKLINE_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;USES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ${ARG_USES} trunkline_options GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    TRUNKLINE_SOURCE_DIR="${PROJECT_SOURCE_DIR}" TRUNKLINE_BINARY_DIR="${PROJECT_BINARY_DIR}"
    TRUNKLINE_TEST_PYTHON="${TRUNKLINE_TEST_PYTHON}")
  gtest_discover_tests(${name} DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
endfunction()

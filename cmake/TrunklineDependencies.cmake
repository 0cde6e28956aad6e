# Every library that Trunkline uses, found here and nowhere else (but for cmake/macos).
option(TRUNKLINE_TESTS "Build the tests" ON)
set(TRUNKLINE_VENV ${PROJECT_SOURCE_DIR}/.venv CACHE PATH "Virtual environment with the pinned PyPI packages")
set(TRUNKLINE_PYTHON ${TRUNKLINE_VENV}/bin/python)
set(TRUNKLINE_TEST_PYTHON ${TRUNKLINE_PYTHON} CACHE FILEPATH "Python with requirements-test.txt, for tests that compare")

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(yaml-cpp REQUIRED)
if(NOT TARGET yaml-cpp::yaml-cpp)  # before 0.8
  add_library(yaml-cpp::yaml-cpp ALIAS yaml-cpp)
endif()
find_package(CLI11 REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(hwy REQUIRED IMPORTED_TARGET libhwy)
pkg_check_modules(isal REQUIRED IMPORTED_TARGET libisal)
pkg_check_modules(sodium REQUIRED IMPORTED_TARGET libsodium)
if(TRUNKLINE_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
endif()

# MLX from its wheel. trunkline::mlx is what targets link: on Linux a BLAS that knows the processor stands before
# libmlx, so that MLX's matrix products bind to it and not to the wheel's reference BLAS.
execute_process(
  COMMAND ${TRUNKLINE_PYTHON} -c "import importlib.util as u; print(u.find_spec('mlx').submodule_search_locations[0])"
  OUTPUT_VARIABLE MLX_WHEEL OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
add_library(mlx_wheel SHARED IMPORTED)
set_target_properties(mlx_wheel PROPERTIES IMPORTED_LOCATION ${MLX_WHEEL}/lib/libmlx${CMAKE_SHARED_LIBRARY_SUFFIX}
  INTERFACE_INCLUDE_DIRECTORIES ${MLX_WHEEL}/include INTERFACE_SYSTEM_INCLUDE_DIRECTORIES ${MLX_WHEEL}/include)
add_library(trunkline_mlx INTERFACE)
add_library(trunkline::mlx ALIAS trunkline_mlx)
if(APPLE)
  target_link_libraries(trunkline_mlx INTERFACE mlx_wheel)
else()
  execute_process(
    COMMAND ${TRUNKLINE_PYTHON} -c "import scipy_openblas32 as b; print(b.get_lib_dir())"
    OUTPUT_VARIABLE OPENBLAS_DIR OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  add_library(openblas_wheel SHARED IMPORTED)
  set_target_properties(openblas_wheel PROPERTIES IMPORTED_LOCATION ${OPENBLAS_DIR}/libscipy_openblas.so)
  add_library(trunkline_blas SHARED ${PROJECT_SOURCE_DIR}/cmake/blas_forward.c)
  target_link_libraries(trunkline_blas PRIVATE openblas_wheel)
  target_link_options(trunkline_mlx INTERFACE -Wl,--no-as-needed)
  target_link_libraries(trunkline_mlx INTERFACE trunkline_blas mlx_wheel)
endif()

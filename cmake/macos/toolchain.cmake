# Compiles for macOS 14 on arm64 from Linux, with zig's clang and the macOS headers that zig carries (no framework's). A
# proof that what only Macs run keeps compiling and linking: what it builds is not for shipping, since zig links a libc++
# of its own.
set(CMAKE_SYSTEM_NAME Darwin)
set(CMAKE_SYSTEM_VERSION 23.0.0)
set(CMAKE_SYSTEM_PROCESSOR arm64)
file(GLOB ZIG ${CMAKE_CURRENT_LIST_DIR}/../../.venv/lib/python3*/site-packages/ziglang/zig)
if(NOT ZIG)
  message(FATAL_ERROR "zig is not in .venv: ./run check installs it from requirements-check.txt")
endif()
set(CMAKE_C_COMPILER ${ZIG} cc)
set(CMAKE_CXX_COMPILER ${ZIG} c++)
# Without optimization zig links a sanitizer in.
foreach(language C CXX)
  set(CMAKE_${language}_FLAGS_INIT "-target aarch64-macos.14.0 -O1")
  set(CMAKE_${language}_ARCHIVE_CREATE "\"${ZIG}\" ar qc <TARGET> <OBJECTS>")
  set(CMAKE_${language}_ARCHIVE_FINISH "\"${ZIG}\" ranlib <TARGET>")
endforeach()
set(CMAKE_CXX_LINK_EXECUTABLE "python3 \"${CMAKE_CURRENT_LIST_DIR}/link.py\" <TARGET> <CMAKE_CXX_COMPILER> <FLAGS> <OBJECTS> <LINK_LIBRARIES>")
set(CMAKE_INSTALL_NAME_TOOL /bin/true CACHE FILEPATH "")
set(CMAKE_OSX_ARCHITECTURES "" CACHE STRING "")
set(CMAKE_OSX_SYSROOT "" CACHE STRING "")
set(CMAKE_OSX_DEPLOYMENT_TARGET "" CACHE STRING "")
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

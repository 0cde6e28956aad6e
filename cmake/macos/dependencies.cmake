# The libraries of cmake/TrunklineDependencies.cmake when compiling for macOS from Linux: MLX from its macOS wheel (laid
# under the build folder by tools/macos_compile.sh), of the others the headers, which Debian's packages have, too.
find_package(Threads REQUIRED)
set(shim ${PROJECT_BINARY_DIR}/include)
file(MAKE_DIRECTORY ${shim})
foreach(header fmt spdlog nlohmann CLI yaml-cpp hwy isa-l isa-l.h sodium sodium.h infiniband rdma)
  if(NOT EXISTS /usr/include/${header})
    message(FATAL_ERROR "/usr/include/${header} is missing: its Debian package is in tools/install.sh")
  endif()
  file(CREATE_LINK /usr/include/${header} ${shim}/${header} SYMBOLIC)
endforeach()

# The verbs header, Linux's in place of Apple's, has integer types of the kernel's.
file(WRITE ${shim}/linux/types.h "#pragma once
#include <stdint.h>
typedef uint8_t __u8; typedef uint16_t __u16; typedef uint32_t __u32; typedef uint64_t __u64;
typedef int32_t __s32; typedef int64_t __s64;
typedef uint16_t __be16; typedef uint32_t __be32; typedef uint64_t __be64;
#define __aligned_u64 __attribute__((aligned(8))) uint64_t
")
set(TRUNKLINE_VERBS_HEADER ${shim} CACHE PATH "" FORCE)

foreach(name fmt::fmt spdlog::spdlog nlohmann_json::nlohmann_json yaml-cpp::yaml-cpp CLI11::CLI11
    PkgConfig::hwy PkgConfig::isal PkgConfig::sodium)
  add_library(${name} INTERFACE IMPORTED)
  target_include_directories(${name} SYSTEM INTERFACE ${shim})
endforeach()
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(spdlog::spdlog INTERFACE fmt::fmt)

add_library(mlx_wheel SHARED IMPORTED)
set_target_properties(mlx_wheel PROPERTIES IMPORTED_LOCATION ${PROJECT_BINARY_DIR}/mlx/mlx/lib/libmlx.dylib)
target_include_directories(mlx_wheel SYSTEM INTERFACE ${PROJECT_BINARY_DIR}/mlx/mlx/include)
add_library(trunkline::mlx ALIAS mlx_wheel)

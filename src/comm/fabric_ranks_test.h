// For tests: what puts the ranks of a job, processes of their own, on emulated cables.
#pragma once

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>

#include "comm/ranks_test.h"
#include "launch/fabric.h"

namespace trunkline::testing {

#ifdef __linux__
constexpr bool kHasFabric = true;
#else
constexpr bool kHasFabric = false;
#endif

class TestFabric {
 public:
  explicit TestFabric(const Wiring& wiring) : fabric_(open_fabric(wiring)) {}
  TestFabric(std::string_view spec, int ranks) : TestFabric(wiring_from_spec(spec, ranks)) {}

  // For start_processes(), in the process of a rank.
  Tweak tweak(const Tweak& more = [](Config&) {}) const {
    return [this, more](Config& config) {
      ::setenv("TRUNKLINE_FABRIC_FD", std::to_string(fabric_.state.get()).c_str(), 1);
      ::setenv("MLX_RANK", std::to_string(config.rank).c_str(), 1);
      config.devices = fmt::format("/proc/self/fd/{}", fabric_.matrix.get());
      // Whoever opens the library by its name later gets this one.
      const auto library = fabric_.library / "libibverbs.so.1";
      if (::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
        fail(ErrorKind::system, "{}: {}", library.string(), ::dlerror());
      }
      more(config);
    };
  }

 private:
  const Fabric fabric_;
};

}  // namespace trunkline::testing

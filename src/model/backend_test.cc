#include "model/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mlx/device.h>

namespace trunkline {
namespace {

// The wheel's own reference BLAS is 50 times slower: a build in which it serves MLX is broken.
TEST(Backend, HasABlasThatKnowsTheProcessor) {
#ifdef __APPLE__
  EXPECT_THAT(describe_backend(), testing::MatchesRegex("mlx 0\\.32\\.4, device .+, BLAS Accelerate"));
#else
  EXPECT_THAT(describe_backend(), testing::MatchesRegex("mlx 0\\.32\\.4, device .+, BLAS OpenBLAS [0-9.]+ "
                                                        "\\(scipy-openblas32, core [A-Za-z0-9_]+, [0-9]+ threads?\\)"));
#endif
}

TEST(Backend, TheDeviceHasMemory) {
  EXPECT_GT(device_memory(), int64_t{1} << 28);
  const std::optional<int64_t> taken = device_memory_taken();
  if (mlx::core::default_device() == mlx::core::Device::cpu) {
    EXPECT_EQ(taken, std::nullopt);
  }
  if (taken) {
    EXPECT_GT(*taken, 0);
    EXPECT_LE(*taken, device_memory());
  }
}

}  // namespace
}  // namespace trunkline

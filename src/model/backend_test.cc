#include "model/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trunkline {
namespace {

// The wheel's own reference BLAS is 50 times slower: a build in which it serves MLX is broken.
TEST(Backend, HasABlasThatKnowsTheProcessor) {
#ifdef __APPLE__
  EXPECT_THAT(describe_backend(), testing::MatchesRegex("mlx 0\\.32\\.4, device .+, BLAS Accelerate"));
#else
  EXPECT_THAT(describe_backend(), testing::MatchesRegex("mlx 0\\.32\\.4, device .+, BLAS OpenBLAS [0-9.]+ "
                                                        "\\(scipy-openblas32, core [A-Za-z0-9_]+, [0-9]+ threads\\)"));
#endif
}

}  // namespace
}  // namespace trunkline

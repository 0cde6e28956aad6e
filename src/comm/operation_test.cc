#include "comm/operation.h"

#include <gtest/gtest.h>

namespace trunkline {
namespace {

TEST(Operation, ADisagreementNamesBothSides) {
  Operation one;
  one.number = 3;
  one.kind = Operation::Kind::all_reduce;
  one.algorithm = Algorithm::broadcast;
  one.dtype = Dtype::f32;
  one.count = 10;
  Operation other = one;
  other.algorithm = Algorithm::mesh;
  other.count = 11;
  EXPECT_EQ(disagreement("rank 0", one, "rank 1", other),
            "ranks disagree on an operation: rank 0 called all_sum of 10 float32 by broadcast (operation 3), rank 1 "
            "called all_sum of 11 float32 by mesh (operation 3)");
}

}  // namespace
}  // namespace trunkline

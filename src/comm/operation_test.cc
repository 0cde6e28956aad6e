#include "comm/operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace trunkline {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Operation, AFlagIsNamedWhereItAloneDiffers) {
  Operation one;
  one.kind = Operation::Kind::all_reduce;
  one.algorithm = Algorithm::ring;
  one.count = 10;
  Operation other = one;
  other.algorithm = Algorithm::mesh;
  EXPECT_THAT(disagreement("rank 0", one, "rank 1", other), HasSubstr("give --algorithm"));
  other.count = 11;  // of another size, each may have chosen by itself
  EXPECT_THAT(disagreement("rank 0", one, "rank 1", other), Not(HasSubstr("give --algorithm")));
  other = one;
  other.kind = Operation::Kind::all_gather;
  EXPECT_THAT(disagreement("rank 0", one, "rank 1", other), Not(HasSubstr("give --algorithm")));
}

}  // namespace
}  // namespace trunkline

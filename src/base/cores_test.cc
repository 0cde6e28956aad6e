#include "base/cores.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace trunkline {
namespace {

TEST(Cores, ReadsAQuota) {
  EXPECT_EQ(quota_cores("max 100000\n"), 0);
  EXPECT_EQ(quota_cores("200000 100000\n"), 2);
  EXPECT_EQ(quota_cores("150000 100000\n"), 2);
  EXPECT_EQ(quota_cores("10000 100000\n"), 1);
  EXPECT_EQ(quota_cores("nonsense"), 0);
  EXPECT_EQ(quota_cores(""), 0);
}

TEST(Cores, AreAtLeastOne) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), ::sysconf(_SC_NPROCESSORS_CONF));
}

}  // namespace
}  // namespace trunkline

#include "train/loss.h"

#include <gtest/gtest.h>

#include <cmath>

namespace trunkline {
namespace {

using Ids = std::vector<int32_t>;
using Mask = std::vector<uint8_t>;

std::vector<int32_t> values(const mx::array& x) {
  mx::array copy = mx::contiguous(x);
  copy.eval();
  return {copy.data<int32_t>(), copy.data<int32_t>() + copy.size()};
}

TEST(Batch, CountsTargetsAndNotPadding) {
  const Ids nine = {1, 2, 3, 4, 5, 6, 7, 8, 9}, four = {11, 12, 13, 14};
  const Mask last_three = {0, 0, 0, 0, 0, 0, 1, 1, 1}, second = {0, 1, 0, 0};
  const Batch batch = make_batch(std::vector<RowView>{{nine, last_three, 3}, {four, second, 1}});
  EXPECT_EQ(batch.target_count, 4);
  EXPECT_EQ(batch.ids.shape(), (mx::Shape{2, 8}));  // the last token predicts nothing
  EXPECT_EQ(values(batch.ids), (Ids{1, 2, 3, 4, 5, 6, 7, 8, 11, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(batch.positions), (Ids{5, 6, 7, 8}));
  EXPECT_EQ(values(batch.targets), (Ids{7, 8, 9, 12}));
}

TEST(Batch, PackedRowsStandOneAfterTheOther) {
  const Ids nine = {1, 2, 3, 4, 5, 6, 7, 8, 9}, four = {11, 12, 13, 14}, three = {21, 22, 23};
  const Mask last_three = {0, 0, 0, 0, 0, 0, 1, 1, 1}, third = {0, 0, 1, 0}, both = {0, 1, 1};
  const RowView a{nine, last_three, 3}, b{four, third, 1}, c{three, both, 2};
  const Batch batch = make_batch(std::vector<std::vector<RowView>>{{c, b}, {a}});
  EXPECT_EQ(batch.target_count, 6);
  EXPECT_EQ(batch.ids.shape(), (mx::Shape{2, 8}));
  EXPECT_EQ(values(batch.ids), (Ids{21, 22, 11, 12, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(values(batch.positions), (Ids{0, 1, 3, 13, 14, 15}));
  EXPECT_EQ(values(batch.targets), (Ids{22, 23, 13, 7, 8, 9}));
  EXPECT_EQ(batch.mask.first, (Ids{0, 0, 2, 2, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values(batch.places), (Ids{0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(values(make_batch(std::vector<RowView>{a, b}).places), (Ids{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_TRUE(make_batch(std::vector<RowView>{a, b}).mask.first.empty());
}

TEST(Batch, ARowWithoutTargetsAddsNothing) {
  const Ids ids = {1, 2, 3};
  const Mask none = {0, 0, 0};
  EXPECT_EQ(make_batch(std::vector<RowView>{{ids, none, 0}}).target_count, 0);
  EXPECT_EQ(make_batch(std::vector<RowView>{}).target_count, 0);
}

}  // namespace
}  // namespace trunkline

// The queue between backward pass and sums. Rank 1 mostly is the test itself, which makes the peer's calls when it
// likes.
#include "train/gradient_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <latch>
#include <span>
#include <thread>
#include <vector>

#include "base/random.h"
#include "bridge/arrays.h"
#include "comm/ranks_test.h"
#include "train/shards.h"

namespace trunkline {
namespace {

using ::testing::HasSubstr;

// Of three tensors: a matrix, a vector, and a matrix that is large enough not to travel with others.
const std::vector<TensorShape> kLayout = {{"a", {7, 6}}, {"b", {5}}, {"c", {150, 128}}};
const std::vector<Piece> kPieces = {{.name = "c", .rows = {{2, 0, 150}}},
                                    {.name = "layer 1", .rows = {{0, 0, 3}, {1, 0, 5}}, .layer = 1},
                                    {.name = "layer 0", .rows = {{0, 3, 4}}, .layer = 0}};

int64_t width_of(const TensorRows& rows) {
  return kLayout[rows.tensor].dims.size() > 1 ? kLayout[rows.tensor].dims[1] : 1;
}

// A rank's gradients of all pieces.
std::vector<std::vector<float>> values_of(const Piece& piece, int rank) {
  std::vector<std::vector<float>> values;
  for (const TensorRows& rows : piece.rows) {
    Random random(100 * static_cast<uint64_t>(rank) + 10 * rows.tensor + static_cast<uint64_t>(rows.row));
    auto& some = values.emplace_back(static_cast<size_t>(rows.rows * width_of(rows)));
    for (float& value : some) value = static_cast<float>(random.below(1 << 20)) / 1000.0f - 500.0f;
  }
  return values;
}

std::vector<mx::array> gradients_of(const Piece& piece, int rank) {
  std::vector<mx::array> gradients;
  const auto values = values_of(piece, rank);
  for (size_t i = 0; i < values.size(); ++i) {
    mx::Shape shape(kLayout[piece.rows[i].tensor].dims.begin(), kLayout[piece.rows[i].tensor].dims.end());
    shape.front() = static_cast<int>(piece.rows[i].rows);
    gradients.emplace_back(values[i].begin(), shape, mx::float32);
  }
  return gradients;
}

// In rank order, as a mesh adds them.
std::vector<std::vector<float>> sums_of(const Piece& piece, int ranks) {
  auto sums = values_of(piece, 0);
  for (int rank = 1; rank < ranks; ++rank) {
    const auto more = values_of(piece, rank);
    for (size_t i = 0; i < sums.size(); ++i) {
      for (size_t j = 0; j < sums[i].size(); ++j) sums[i][j] += more[i][j];
    }
  }
  return sums;
}

std::vector<float> bits_of(const mx::array& array) { return {array.data<float>(), array.data<float>() + array.size()}; }

// What `done` was given.
struct Done {
  std::vector<Piece> pieces;
  std::vector<std::vector<std::vector<float>>> values;
  std::vector<std::thread::id> threads;

  HandOver take() {
    return [this](const Piece& piece, const std::vector<mx::array>& gradients) {
      pieces.push_back(piece);
      threads.push_back(std::this_thread::get_id());
      auto& all = values.emplace_back();
      for (const mx::array& gradient : gradients) all.push_back(bits_of(gradient));
    };
  }
};

// The other rank's part in the sum of a piece.
void sum_as_peer(Group& group, const Piece& piece, int rank) {
  auto values = values_of(piece, rank);
  std::vector<std::span<char>> memory;
  for (auto& some : values) memory.emplace_back(reinterpret_cast<char*>(some.data()), some.size() * sizeof(float));
  all_sum(group, memory, Dtype::f32);
}

std::vector<testing::Thrown> with_peer(const std::function<void(Group&)>& rank0,
                                       const std::function<void(Group&)>& peer) {
  return testing::run_threads(2, [&](Group& group) { group.rank() == 0 ? rank0(group) : peer(group); });
}

// Waits for what the other rank does, as long as a group would; false if it has not come.
bool comes_true(const std::function<bool()>& condition) {
  for (int i = 0; i < 20'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return condition();
}

void expect_none(const std::vector<testing::Thrown>& errors) {
  for (const auto& error : errors) EXPECT_EQ(error.text, "");
}

void expect_sums(const Done& done, int ranks) {
  ASSERT_EQ(done.pieces, kPieces) << "in the order in which they were submitted";
  for (size_t i = 0; i < kPieces.size(); ++i) EXPECT_EQ(done.values[i], sums_of(kPieces[i], ranks)) << i;
}

TEST(GradientExchange, WhatIsOnItsWayIsBounded) {
  static_assert(GradientExchange::kDepth < 3, "there are three pieces");
  std::atomic<size_t> submitted = 0;
  const auto errors = with_peer(
      [&](Group& group) {
        Timeline timeline;
        Done done;
        GradientExchange exchange(group, {}, timeline, done.take());
        for (const Piece& piece : kPieces) {
          exchange.submit(piece, gradients_of(piece, 0));
          submitted.fetch_add(1);
        }
        exchange.finish();
        expect_sums(done, 2);
        EXPECT_EQ(std::ranges::count(done.threads, std::this_thread::get_id()), 3) << "on the submitting thread";
      },
      [&](Group& group) {
        ASSERT_TRUE(comes_true([&] { return submitted >= GradientExchange::kDepth; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        EXPECT_EQ(submitted, GradientExchange::kDepth) << "the next one waits for a sum";
        for (const Piece& piece : kPieces) sum_as_peer(group, piece, 1);
      });
  expect_none(errors);
}

TEST(GradientExchange, AfterTheBackwardPassNothingIsSummedBefore) {
  std::latch submitted(1);
  const auto errors = with_peer(
      [&](Group& group) {
        Timeline timeline;
        Done done;
        GradientExchange exchange(group, {.sync = Sync::after}, timeline, done.take());
        for (const Piece& piece : kPieces) exchange.submit(piece, gradients_of(piece, 0));
        EXPECT_TRUE(done.pieces.empty());
        submitted.count_down();
        exchange.finish();
        expect_sums(done, 2);
      },
      [&](Group& group) {
        ASSERT_TRUE(comes_true([&] { return submitted.try_wait(); }));
        for (const Piece& piece : kPieces) sum_as_peer(group, piece, 1);
      });
  expect_none(errors);
}

TEST(GradientExchange, OverlapAndAfterGiveTheSameBits) {
  for (const bool sharded : {false, true}) {
    std::vector<std::array<Done, 2>> done(3);
    const auto errors = testing::run_threads(3, [&](Group& group) {
      const Shards shards(kPieces, kLayout, group.rank(), group.size());
      for (const Sync sync : {Sync::overlap, Sync::after}) {
        Timeline timeline;
        GradientExchange exchange(group, {.sync = sync, .shards = sharded ? &shards : nullptr}, timeline,
                                  done[static_cast<size_t>(group.rank())][sync == Sync::after ? 1 : 0].take());
        for (const Piece& piece : kPieces) exchange.submit(piece, gradients_of(piece, group.rank()));
        exchange.finish();
      }
    });
    expect_none(errors);
    for (size_t rank = 0; rank < 3; ++rank) {
      const auto& [overlap, after] = done[rank];
      EXPECT_EQ(overlap.pieces, after.pieces);
      EXPECT_EQ(overlap.values, after.values);
      if (!sharded) {
        expect_sums(overlap, 3);
        continue;
      }
      // Each rank's parts are those rows of the whole sums.
      const Shards shards(kPieces, kLayout, static_cast<int>(rank), 3);
      for (size_t i = 0; i < kPieces.size(); ++i) {
        const auto sums = sums_of(kPieces[i], 3);
        EXPECT_EQ(overlap.pieces.at(i), shards.as_parts(kPieces[i]));
        size_t at = 0;
        for (size_t j = 0; j < kPieces[i].rows.size(); ++j) {
          const TensorRows& whole = kPieces[i].rows[j];
          for (const size_t part : shards.parts_of(whole)) {
            const TensorRows& rows = shards.parts()[part].rows;
            const int64_t width = width_of(whole);
            const auto begin = sums[j].begin() + (rows.row - whole.row) * width;
            EXPECT_EQ(overlap.values[i].at(at++), std::vector<float>(begin, begin + rows.rows * width));
          }
        }
        EXPECT_EQ(at, overlap.values[i].size());
      }
    }
  }
}

// What has travelled as bf16 comes back as f32; a sum is rounded once.
TEST(GradientExchange, HalfTheBytesTravel) {
  const Piece piece{.name = "b", .rows = {{1, 0, 5}}};
  const auto errors = with_peer(
      [&](Group& group) {
        Timeline timeline;
        Done done;
        GradientExchange exchange(group, {.wire = Dtype::bf16}, timeline, done.take());
        const std::vector<float> values = {1.0f, -2.5f, 1.00390625f, 0.0f, 256.0f};  // the third: half way, to even
        exchange.submit(piece, {mx::array(values.begin(), {5}, mx::float32)});
        exchange.finish();
        ASSERT_EQ(done.values.size(), 1u);
        EXPECT_EQ(done.values[0][0], (std::vector<float>{2.0f, -1.5f, 2.0f, 1.0f, 256.0f}));
      },
      [&](Group& group) {
        std::vector<uint16_t> ones(5, 0x3f80);  // 256 + 1 has a bit more than bf16, and is half way
        all_sum(group, {{reinterpret_cast<char*>(ones.data()), 10}}, Dtype::bf16);
      });
  expect_none(errors);
}

TEST(GradientExchange, OneRankHasItsGradientsBackAtOnce) {
  const auto errors = testing::run_threads(1, [&](Group& group) {
    Timeline timeline;
    Done done;
    GradientExchange exchange(group, {}, timeline, done.take());
    exchange.submit(kPieces[0], gradients_of(kPieces[0], 0));
    ASSERT_EQ(done.pieces.size(), 1u);
    EXPECT_EQ(done.values[0], values_of(kPieces[0], 0));
    exchange.finish();
  });
  expect_none(errors);
}

// A failure of the summing thread is thrown where pieces are submitted, and the thread ends.
TEST(GradientExchange, WhatEndsTheSumsIsThrownToTheSubmitter) {
  for (const Sync sync : {Sync::overlap, Sync::after}) {
    Done done;
    const auto errors = with_peer(
        [&](Group& group) {
          Timeline timeline;
          GradientExchange exchange(group, {.sync = sync}, timeline, done.take());
          for (const Piece& piece : kPieces) exchange.submit(piece, gradients_of(piece, 0));
          exchange.finish();
        },
        [&](Group& group) {
          sum_as_peer(group, kPieces[0], 1);
          group.abort("a disk is full");
        });
    EXPECT_EQ(errors[0].kind, ErrorKind::peer);
    EXPECT_THAT(errors[0].text, HasSubstr("a disk is full"));
    EXPECT_LE(done.pieces.size(), 1u);
  }
  const auto errors = with_peer(
      [&](Group& group) {
        Timeline timeline;
        Done done;
        GradientExchange exchange(group, {}, timeline, done.take());
        for (const Piece& piece : kPieces) exchange.submit(piece, gradients_of(piece, 0));
        exchange.finish();
      },
      [&](Group& group) { sum_as_peer(group, kPieces[1], 1); });  // another size
  EXPECT_EQ(errors[0].kind, ErrorKind::mismatch);
  EXPECT_EQ(errors[1].kind, ErrorKind::mismatch);
}

// A backward pass that fails leaves pieces behind: once the group is aborted, the exchange goes without its peer.
TEST(GradientExchange, AnAbortedOneIsLeft) {
  std::latch left(1);
  const auto errors = with_peer(
      [&](Group& group) {
        Timeline timeline;
        Done done;
        {
          GradientExchange exchange(group, {}, timeline, done.take());
          exchange.submit(kPieces[0], gradients_of(kPieces[0], 0));
          exchange.submit(kPieces[1], gradients_of(kPieces[1], 0));
          group.abort("no memory");
          try {
            exchange.finish();
            ADD_FAILURE() << "there are no sums";
          } catch (const Error& error) {
            EXPECT_EQ(error.kind(), ErrorKind::peer) << error.what();  // no deadline was waited for
            EXPECT_THAT(error.what(), HasSubstr("no memory"));
          }
        }
        EXPECT_TRUE(done.pieces.empty());
        left.count_down();
      },
      [&](Group& group) {
        ASSERT_TRUE(comes_true([&] { return left.try_wait(); }));
        sum_as_peer(group, kPieces[0], 1);
      });
  EXPECT_EQ(errors[0].text, "");
  EXPECT_EQ(errors[1].kind, ErrorKind::peer);
  EXPECT_THAT(errors[1].text, HasSubstr("no memory"));
}

}  // namespace
}  // namespace trunkline

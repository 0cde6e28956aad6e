#include "link/frame_protocol.h"

#include <gtest/gtest.h>

#include "base/crc32c.h"
#include "link/frame_simulator_test.h"

namespace trunkline {
namespace {

using simulator::Outcome;

constexpr std::array<uint64_t, kFramePhases> kNothing{};

FrameProtocol::Options two_links() {
  FrameProtocol::Options options;
  options.generation = 7;
  options.frame_bytes = 32;
  options.slots = 4;
  options.links.assign(2, {.send_depth = 32, .receives = 32, .peer_receives = 32});
  return options;
}

// A frame of 8 bytes, sealed.
std::vector<std::byte> sealed(bool checksum, FrameType type = FrameType::data) {
  std::vector<std::byte> slot(kFrameHeaderBytes + 8, std::byte{42});
  FrameHeader header;
  header.type = type;
  header.generation = 7;
  header.length = 8;
  header.stream_bytes = 8;
  seal_frame(slot, header, checksum);
  return slot;
}

TEST(Frame, EveryChangedBitIsDamage) {
  const std::vector<std::byte> slot = sealed(true);
  EXPECT_EQ(read_frame(slot, true).state, Frame::State::good);
  EXPECT_EQ(read_frame(slot, true).payload.size(), 8u);
  for (size_t bit = 0; bit < 8 * slot.size(); ++bit) {
    std::vector<std::byte> changed = slot;
    changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_EQ(read_frame(changed, true).state, Frame::State::damaged) << bit;
  }
  EXPECT_EQ(read_frame(std::span(slot).first(slot.size() - 1), true).state, Frame::State::damaged);
}

TEST(Frame, ChecksumsAreOnForAllOrForNone) {
  EXPECT_EQ(read_frame(sealed(false), false).state, Frame::State::good);
  EXPECT_EQ(read_frame(sealed(false), true).state, Frame::State::damaged);
  EXPECT_EQ(read_frame(sealed(true), false).state, Frame::State::damaged);
}

TEST(Frame, WithoutChecksumsOnlyThePayloadOfDataMayBeDamaged) {
  for (const FrameType type : {FrameType::data, FrameType::credit}) {
    const std::vector<std::byte> slot = sealed(false, type);
    for (size_t bit = 0; bit < 8 * slot.size(); ++bit) {
      std::vector<std::byte> changed = slot;
      changed[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
      const bool unnoticed = type == FrameType::data && bit / 8 >= kFrameHeaderBytes;
      EXPECT_EQ(read_frame(changed, false).state, unnoticed ? Frame::State::good : Frame::State::damaged) << bit;
    }
  }
}

TEST(Frame, TheChecksumOfThePayloadMayBeComputedApart) {
  std::vector<std::byte> slot = sealed(true);
  const FrameHeader header = read_frame(slot, true).header;
  seal_frame(slot, header, crc32c(slot.data() + kFrameHeaderBytes, 8, checksum_seed(header)));
  EXPECT_EQ(read_frame(slot, true).state, Frame::State::good);
}

TEST(FrameProtocol, AnotherOperationIsAFaultThatHasBothSides) {
  FrameProtocol protocol(two_links());
  const FrameOperation own{.number = 3, .count = 100, .kind = 1};
  protocol.begin(own, own, kNothing, kNothing, FrameTime(0));
  std::vector<std::byte> slot(kFrameHeaderBytes + 8);
  FrameHeader header;
  header.generation = 7;
  FrameOperation theirs = own;
  theirs.count = 200;
  header.set_operation(theirs);
  header.length = header.stream_bytes = 8;
  seal_frame(slot, header, true);
  EXPECT_FALSE(protocol.arrived(0, 0, read_frame(slot, true), FrameTime(0)));
  ASSERT_TRUE(protocol.fault());
  EXPECT_EQ(protocol.fault()->kind, ErrorKind::mismatch);
  EXPECT_EQ(protocol.fault()->own, own);
  EXPECT_EQ(protocol.fault()->theirs, theirs);
  EXPECT_FALSE(protocol.next_post(FrameTime(0)));
}

TEST(FrameProtocol, AnotherVersionOrGenerationIsAFault) {
  for (const bool version : {true, false}) {
    FrameProtocol protocol(two_links());
    std::vector<std::byte> slot(kFrameHeaderBytes);
    FrameHeader header;
    header.generation = version ? 7 : 6;
    header.version = version ? kFrameVersion + 1 : kFrameVersion;
    seal_frame(slot, header, true);
    EXPECT_FALSE(protocol.arrived(1, 0, read_frame(slot, true), FrameTime(0)));
    ASSERT_TRUE(protocol.fault());
    EXPECT_EQ(protocol.fault()->kind, ErrorKind::mismatch);
  }
}

TEST(FrameProtocol, SilenceIsAFaultOnceTheDeadlineIsPast) {
  FrameProtocol::Options options = two_links();
  options.deadline = std::chrono::seconds(5);
  FrameProtocol protocol(options);
  protocol.begin({}, {}, kNothing, kNothing, FrameTime(0));
  protocol.advance(std::chrono::seconds(4));
  protocol.excuse(std::chrono::seconds(4));  // it is known to be busy
  protocol.advance(std::chrono::seconds(8));
  EXPECT_FALSE(protocol.fault());
  protocol.advance(std::chrono::seconds(9));
  ASSERT_TRUE(protocol.fault());
  EXPECT_EQ(protocol.fault()->kind, ErrorKind::timeout);
}

TEST(FrameProtocol, AFrameInAQueueThatStallsGoesOverAnotherLink) {
  FrameProtocol protocol(two_links());
  constexpr std::array<uint64_t, kFramePhases> kOneFrame{0, 8};
  protocol.begin({}, {}, kOneFrame, kNothing, FrameTime(0));
  protocol.offer(1, 0, 8, 0);
  const auto first = protocol.next_post(FrameTime(0));
  ASSERT_TRUE(first && !first->credit);
  std::optional<size_t> again;
  const FrameTime now = std::chrono::seconds(1);  // no send has completed
  protocol.advance(now);
  while (const auto post = protocol.next_post(now)) {
    if (!post->credit) again = post->link;
  }
  EXPECT_EQ(again, size_t{1} - first->link);
  EXPECT_FALSE(protocol.released());
}

TEST(FrameProtocol, NothingIsSentTwiceWithoutCause) {
  const Outcome outcome = simulator::simulate(simulator::long_schedule(1, 20'000, 0));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_EQ(outcome.repeats, 0u);
  EXPECT_EQ(outcome.overrun, 0u);
}

TEST(FrameProtocol, ALongStreamWithLosses) {
  const Outcome outcome = simulator::simulate(simulator::long_schedule(1, 20'000, 1e-3));
  EXPECT_EQ(outcome.failure, "");
  EXPECT_FALSE(outcome.error);
  EXPECT_GT(outcome.messages, 20'000u);
  EXPECT_GT(outcome.repeats, 0u);
}

// 10,000 schedules, in parts that run side by side.
class RandomSchedules : public ::testing::TestWithParam<uint64_t> {
 protected:
  static constexpr uint64_t kSchedules = 500;
};

TEST_P(RandomSchedules, EndInRightDataOrOneError) {
  uint64_t errors = 0, lost = 0, damaged = 0, overrun = 0, repeats = 0;
  for (uint64_t seed = GetParam() * kSchedules; seed < (GetParam() + 1) * kSchedules; ++seed) {
    const Outcome outcome = simulator::simulate(simulator::random_schedule(seed));
    ASSERT_EQ(outcome.failure, "") << "seed " << seed << ": build/release/frame_simulator --seed " << seed;
    errors += outcome.error ? 1 : 0;
    lost += outcome.lost;
    damaged += outcome.damaged;
    overrun += outcome.overrun;
    repeats += outcome.repeats;
  }
  // Schedules of which nothing comes test nothing.
  EXPECT_GT(errors, 5u);
  EXPECT_GT(lost, 500u);
  EXPECT_GT(damaged, 50u);
  EXPECT_GT(repeats, 500u);
  EXPECT_GT(overrun, 0u);
}

INSTANTIATE_TEST_SUITE_P(Parts, RandomSchedules, ::testing::Range<uint64_t>(0, 20));

}  // namespace
}  // namespace trunkline

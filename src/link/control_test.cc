#include "link/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>

#include "link/socket.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

Control::Hooks hooks() {
  return {.status = [] { return std::string("busy"); },
          .on_status = [](size_t, const std::string&) {},
          .last_operation = [](size_t) { return std::string("its last operation was number 7"); }};
}

// Three ranks, connected.
class ControlTest : public ::testing::Test {
 protected:
  ControlTest() : streams_(3) {
    for (auto& each : streams_) each.resize(3);
    for (size_t rank = 0; rank < 3; ++rank) members_.push_back({"host" + std::to_string(rank), 0, ""});
    for (size_t a = 0; a < 3; ++a) {
      for (size_t b = a + 1; b < 3; ++b) {
        const Fd listener = listen_on(Address::resolve("127.0.0.1:0").front());
        std::string reason;
        const Patience patience{Deadline::after(5s)};
        streams_[a][b] = MessageStream(connect_to(Address::local_of(listener.get()), patience, reason));
        EXPECT_TRUE(wait_for(listener.get(), 1 /* POLLIN */, patience));
        streams_[b][a] = MessageStream(accept_on(listener.get()));
      }
    }
  }

  std::unique_ptr<Control> start(size_t rank, Control::Hooks with = hooks()) {
    return std::make_unique<Control>(rank, members_, std::move(streams_[rank]), std::move(with));
  }

  // The failure that a rank knows of, once it does.
  static std::string failure_of(const Control& control) {
    EXPECT_TRUE(wait_readable(control.failure_fd(), 5000));
    const auto failure = control.failure();
    return failure ? failure->text : "";
  }

  std::vector<Member> members_;
  std::vector<std::vector<MessageStream>> streams_;
};

TEST_F(ControlTest, TheFirstFailureWinsEverywhere) {
  auto a = start(0), b = start(1), c = start(2);
  b->fail_job({ErrorKind::numeric, "the loss is not finite"});
  EXPECT_EQ(failure_of(*a), "the loss is not finite");
  EXPECT_EQ(failure_of(*c), "the loss is not finite");
  a->fail_job({ErrorKind::peer, "something later"});
  EXPECT_EQ(failure_of(*a), "the loss is not finite");
  EXPECT_EQ(a->failure()->kind, ErrorKind::numeric);
}

TEST_F(ControlTest, AConnectionThatEndsWithoutGoodbyeIsADeath) {
  auto a = start(0), c = start(2);
  for (MessageStream& each : streams_[1]) each.close();
  for (const Control* each : {a.get(), c.get()}) {
    EXPECT_EQ(failure_of(*each),
              "rank 1 (host1) died: its control connection ended (closed) without a goodbye; its last operation was "
              "number 7");
  }
}

TEST_F(ControlTest, AGoodbyeIsNone) {
  auto a = start(0), b = start(1), c = start(2);
  const auto before = Clock::now();
  b.reset();
  EXPECT_LT(seconds_since(before), 1);
  EXPECT_TRUE(a->has_left(1));
  EXPECT_TRUE(c->has_left(1));
  EXPECT_FALSE(a->has_left(2));
  std::this_thread::sleep_for(50ms);
  EXPECT_FALSE(a->failure());
  EXPECT_FALSE(c->failure());
}

TEST_F(ControlTest, WhatWasReadBeforeIsHeard) {
  streams_[1][0].write(Message::Type::goodbye, "");
  ASSERT_TRUE(wait_readable(streams_[0][1].fd(), 5000));
  ASSERT_TRUE(streams_[0][1].read());
  auto a = start(0);
  for (const Deadline deadline = Deadline::after(5s); !a->has_left(1) && !deadline.expired();)
    std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(a->has_left(1));
  streams_[2][0].close();
}

TEST_F(ControlTest, GarbageIsAFailureThatNamesTheRank) {
  auto a = start(0);
  ASSERT_TRUE(write_some(streams_[1][0].fd(), std::as_bytes(std::span("\xff\xff\xff\xff\xff\xff", 6))));
  EXPECT_THAT(failure_of(*a), HasSubstr("rank 1 (host1) died: bytes on a control connection that are no message"));
}

TEST_F(ControlTest, StatusIsAskedForAndAnswered) {
  std::atomic<int> answers{0};
  Control::Hooks asking = hooks();
  asking.on_status = [&](size_t peer, const std::string& status) {
    EXPECT_TRUE(peer == 1 || peer == 2);
    EXPECT_EQ(status, "busy");
    ++answers;
  };
  auto a = start(0, asking), b = start(1), c = start(2);
  a->ask_status();
  for (const Deadline deadline = Deadline::after(5s); answers < 2 && !deadline.expired();)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(answers, 2);
}

TEST_F(ControlTest, AMessageInPieces) {
  auto a = start(0);
  const std::string payload = Encoder().put(uint8_t{2}).put(std::string_view("slowly")).take();
  const std::string bytes =
      Encoder().put(static_cast<uint32_t>(payload.size())).put(Message::Type::failure).take() + payload;
  for (const char& each : bytes) {
    ASSERT_TRUE(write_some(streams_[1][0].fd(), std::as_bytes(std::span(&each, 1))));
    std::this_thread::sleep_for(2ms);
  }
  EXPECT_EQ(failure_of(*a), "slowly");
}

}  // namespace
}  // namespace trunkline

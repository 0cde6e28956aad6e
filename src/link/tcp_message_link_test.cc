#include "link/tcp_message_link.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <vector>

#include "base/random.h"

namespace trunkline {
namespace {

using Kind = MessageCompletion::Kind;

class TcpMessages : public testing::Test {
 protected:
  TcpMessages() {
    int pair[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    const int small = 4096;
    for (const int fd : pair) {
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
      ::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    }
    one_ = std::make_unique<TcpMessageLink>(TcpLink(Fd(pair[0])), "tcp", 4);
    other_ = std::make_unique<TcpMessageLink>(TcpLink(Fd(pair[1])), "tcp", 4);
  }

  static std::vector<MessageCompletion> poll(TcpMessageLink& link) {
    std::vector<MessageCompletion> completions(16);
    completions.resize(link.poll(completions));
    return completions;
  }

  std::unique_ptr<TcpMessageLink> one_, other_;
};

TEST_F(TcpMessages, KeepOrderAndSizesThroughPartialWrites) {
  Random random(3);
  std::vector<std::vector<std::byte>> messages(200), slots(3, std::vector<std::byte>(50'000));
  for (size_t i = 0; i < messages.size(); ++i) {
    messages[i].resize(i % 7 == 0 ? i / 7 : random.below(50'001));
    for (auto& byte : messages[i]) byte = static_cast<std::byte>(random.next());
  }
  for (size_t i = 0; i < slots.size(); ++i) other_->post_receive(slots[i].data(), 50'000, i);
  size_t posted = 0, sent = 0, received = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (received < messages.size() && std::chrono::steady_clock::now() < end) {
    if (posted < messages.size() &&
        one_->post_send(messages[posted].data(), static_cast<uint32_t>(messages[posted].size()), posted)) {
      ++posted;
    }
    for (const auto& each : poll(*one_)) {
      ASSERT_EQ(each.kind, Kind::sent);
      ASSERT_TRUE(each.good);
      ASSERT_EQ(each.id, sent++);
    }
    for (const auto& each : poll(*other_)) {
      ASSERT_EQ(each.kind, Kind::received);
      ASSERT_EQ(each.id, received % 3);
      ASSERT_EQ(each.bytes, messages[received].size());
      ASSERT_TRUE(std::equal(messages[received].begin(), messages[received].end(), slots[each.id].begin()));
      other_->post_receive(slots[each.id].data(), 50'000, each.id);
      ++received;
    }
  }
  EXPECT_EQ(received, messages.size());
  EXPECT_EQ(sent, messages.size());
}

TEST_F(TcpMessages, WaitInTheConnectionForAReceive) {
  const std::byte message[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(one_->post_send(message, 3, 5));
  EXPECT_EQ(poll(*one_).size(), 1u);
  EXPECT_EQ(poll(*other_).size(), 0u);
  std::byte slot[8];
  other_->post_receive(slot, 8, 9);
  const auto completions = poll(*other_);
  ASSERT_EQ(completions.size(), 1u);
  EXPECT_EQ(completions[0].id, 9u);
  EXPECT_EQ(completions[0].bytes, 3u);
  EXPECT_EQ(std::memcmp(slot, message, 3), 0);
}

TEST_F(TcpMessages, AreTakenUpToTheDepthAndCompletedWhenTheConnectionEnds) {
  const std::vector<std::byte> message(1 << 20);
  for (uint64_t i = 0; i < 4; ++i) ASSERT_TRUE(one_->post_send(message.data(), 1 << 20, i));
  EXPECT_FALSE(one_->post_send(message.data(), 1, 4));
  EXPECT_TRUE(one_->wants_write());
  other_.reset();
  const auto completions = poll(*one_);
  ASSERT_EQ(completions.size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(completions[i].id, i);
    EXPECT_FALSE(completions[i].good);
  }
  EXPECT_THAT(one_->fault(), testing::StartsWith("tcp: "));
  EXPECT_FALSE(one_->post_send(message.data(), 1, 4));
}

TEST_F(TcpMessages, LongerThanTheirReceiveEndTheLink) {
  const std::vector<std::byte> message(9);
  ASSERT_TRUE(one_->post_send(message.data(), 9, 0));
  std::byte slot[8];
  other_->post_receive(slot, 8, 0);
  EXPECT_EQ(poll(*other_).size(), 0u);
  EXPECT_EQ(other_->fault(), "tcp: a message of 9 bytes, longer than the 8 of its receive");
}

}  // namespace
}  // namespace trunkline

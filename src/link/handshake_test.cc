#include "link/handshake.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <future>
#include <thread>

namespace trunkline {
namespace {

using namespace std::chrono_literals;

const std::string kHex = "00112233445566778899aabbccddeeff";
const std::string kOtherHex = "ff112233445566778899aabbccddeeff";

// Two ends of a connection on loopback.
struct Ends {
  Fd connecting, listening;
};
Ends connect() {
  const Fd listener = listen_on(Address::resolve("127.0.0.1:0").front());
  const Patience patience{Deadline::after(5s)};
  std::string reason;
  Ends ends;
  ends.connecting = connect_to(Address::local_of(listener.get()), patience, reason);
  EXPECT_TRUE(wait_for(listener.get(), 1 /* POLLIN */, patience));
  ends.listening = accept_on(listener.get());
  return ends;
}

const Claim kClaim{Claim::Purpose::lane, 3, 2, 1};

// Feeds the doorkeeper until it has proof, gives up ("...") or throws.
std::string verdict_of(Doorkeeper& door, Clock::duration patience = 2s) {
  const Deadline deadline = Deadline::after(patience);
  try {
    while (!deadline.expired()) {
      if (door.advance()) return "proven";
      std::this_thread::sleep_for(1ms);
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "...";
}

TEST(Handshake, BothSidesProveTheKey) {
  Ends ends = connect();
  const JobKey key(kHex);
  auto client = std::async(std::launch::async,
                           [&] { return prove(ends.connecting.get(), key, kClaim, "hello", {Deadline::after(5s)}); });
  Doorkeeper door(std::move(ends.listening), key, 1);
  EXPECT_EQ(verdict_of(door), "proven");
  EXPECT_EQ(client.get(), Verdict::accepted);
  EXPECT_EQ(door.payload(), "hello");
  EXPECT_EQ(door.claim().purpose, Claim::Purpose::lane);
  EXPECT_EQ(door.claim().lane, 3u);
  EXPECT_EQ(door.claim().from, 2u);
}

TEST(Handshake, AWrongKeyIsSeenByBothSides) {
  Ends ends = connect();
  auto client = std::async(std::launch::async, [&] {
    const Verdict verdict = prove(ends.connecting.get(), JobKey(kOtherHex), kClaim, "", {Deadline::after(5s)});
    ends.connecting.reset();
    return verdict;
  });
  const JobKey key(kHex);
  Doorkeeper door(std::move(ends.listening), key, 1);
  EXPECT_EQ(verdict_of(door), "closed the connection before proving the job key");
  EXPECT_EQ(client.get(), Verdict::wrong_key);
}

TEST(Handshake, AClaimToAnotherRankIsTurnedAway) {
  Ends ends = connect();
  const JobKey key(kHex);
  auto client = std::async(std::launch::async, [&] {
    EXPECT_THROW(prove(ends.connecting.get(), key, kClaim, "", {Deadline::after(5s)}), Error);
  });
  {
    Doorkeeper door(std::move(ends.listening), key, 7);
    EXPECT_EQ(verdict_of(door), "looks for rank 1; this is rank 7");
  }
  client.get();
}

// What the connecting side says, without the key: taken from a proper handshake, then said again to another doorkeeper.
class Recorded : public ::testing::Test {
 protected:
  static constexpr size_t kOpening = 8 + 13 + 32;
  static constexpr size_t kReply = 32 + 4;
  static constexpr size_t kAnswer = 8 + 32 + 32;

  static std::string receive(int fd, size_t size) {
    std::string bytes(size, '\0');
    read_all(fd, std::as_writable_bytes(std::span(bytes)), {Deadline::after(5s)});
    return bytes;
  }
  static void send(int fd, std::string_view bytes) {
    write_all(fd, std::as_bytes(std::span(bytes)), {Deadline::after(5s)});
  }

  // A stranger that passes the bytes of a true rank on, and keeps them.
  void record() {
    Ends inner = connect(), outer = connect();
    auto rank = std::async(std::launch::async,
                           [&] { return prove(outer.connecting.get(), key_, kClaim, "", {Deadline::after(5s)}); });
    Doorkeeper door(std::move(inner.listening), key_, 1);
    opening_ = receive(outer.listening.get(), kOpening);
    send(inner.connecting.get(), opening_);
    EXPECT_EQ(verdict_of(door, 50ms), "...");
    answer_ = receive(inner.connecting.get(), kAnswer);
    send(outer.listening.get(), answer_);
    reply_ = receive(outer.listening.get(), kReply);
    send(outer.listening.get(), "y");
    EXPECT_EQ(rank.get(), Verdict::accepted);
  }

  const JobKey key_{kHex};
  std::string opening_, answer_, reply_;
};

TEST_F(Recorded, AReplayProvesNothing) {
  record();
  Ends ends = connect();
  send(ends.connecting.get(), opening_ + reply_);
  Doorkeeper door(std::move(ends.listening), key_, 1);
  EXPECT_EQ(verdict_of(door), "does not have this job's key");
}

TEST_F(Recorded, AReflectedProofProvesNothing) {
  // The stranger asks the listening side for a proof, and gives it back as its own.
  Ends ends = connect();
  Doorkeeper door(std::move(ends.listening), key_, 1);
  record();
  send(ends.connecting.get(), opening_);
  EXPECT_EQ(verdict_of(door, 50ms), "...");
  const std::string answer = receive(ends.connecting.get(), kAnswer);
  send(ends.connecting.get(), answer.substr(40) + std::string(4, '\0'));
  EXPECT_EQ(verdict_of(door), "does not have this job's key");
}

TEST_F(Recorded, AProofServesNoOtherPurpose) {
  // A true rank's proof for lane 3, on a connection that the stranger opened for lane 4 with the same challenge.
  Ends inner = connect(), outer = connect();
  auto rank = std::async(std::launch::async, [&] {
    EXPECT_EQ(prove(outer.connecting.get(), key_, kClaim, "", {Deadline::after(5s)}), Verdict::wrong_key);
  });
  Doorkeeper door(std::move(inner.listening), key_, 1);
  std::string opening = receive(outer.listening.get(), kOpening);
  opening[9] = 4;  // the lane
  send(inner.connecting.get(), opening);
  EXPECT_EQ(verdict_of(door, 50ms), "...");
  send(outer.listening.get(), receive(inner.connecting.get(), kAnswer));
  rank.get();  // which sees that the claim was changed, and proves nothing
}

TEST(Handshake, GarbageIsTurnedAwayAtOnce) {
  for (const std::string garbage : {"GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01", "trunkln2"}) {
    Ends ends = connect();
    write_all(ends.connecting.get(), std::as_bytes(std::span(garbage)), {Deadline::after(1s)});
    const JobKey key(kHex);
    Doorkeeper door(std::move(ends.listening), key, 1);
    EXPECT_EQ(verdict_of(door), "does not speak this protocol");
  }
}

TEST(JobKey, MustBeLongHexadecimal) {
  for (const char* bad : {"12", "00112233445566778899aabbccddeefg", "00112233445566778899aabbccddeef", "secret"}) {
    EXPECT_THROW(JobKey{bad}, Error) << bad;
  }
  EXPECT_TRUE(JobKey("").empty());
  EXPECT_FALSE(JobKey(kHex).empty());
}

}  // namespace
}  // namespace trunkline

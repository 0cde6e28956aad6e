#include "link/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spdlog/sinks/ostream_sink.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "base/log.h"
#include "link/handshake.h"
#include "link/socket.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

const std::string kKey = "00112233445566778899aabbccddeeff";
const std::string kOtherKey = "ff112233445566778899aabbccddeeff";

// What is logged while this lives.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(
        std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(out_)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  std::string text() const { return out_.str(); }

 private:
  std::ostringstream out_;
  std::shared_ptr<spdlog::logger> before_;
};

class RendezvousTest : public ::testing::Test {
 protected:
  Place place(int rank, int size, bool inherit = true) {
    Place place;
    place.rank = rank;
    place.size = size;
    place.coordinator = Address::local_of(listener_.get()).text();
    place.job_key = kKey;
    place.timeout = 10s;
    if (rank == 0 && inherit) place.listen_fd = ::dup(listener_.get());
    return place;
  }

  Fd stranger() {
    std::string reason;
    Fd fd = connect_to(Address::local_of(listener_.get()), {Deadline::after(5s)}, reason);
    EXPECT_TRUE(fd) << reason;
    return fd;
  }

  // Runs each place in a thread of its own; what each threw ("" for nothing). `wirings_` has what they returned.
  std::vector<std::string> run(const std::vector<Place>& places) {
    std::vector<std::string> errors(places.size());
    wirings_.resize(places.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < places.size(); ++i) {
      threads.emplace_back([&, i] {
        try {
          wirings_[i] = rendezvous(places[i]);
        } catch (const Error& error) {
          errors[i] = error.what();
        }
      });
    }
    for (std::thread& each : threads) each.join();
    return errors;
  }

  Fd listener_ = listen_on(Address::resolve("127.0.0.1:0").front());
  std::vector<Connections> wirings_;
};

TEST_F(RendezvousTest, ConnectsEveryPair) {
  std::vector<Place> places;
  for (int rank = 0; rank < 4; ++rank) places.push_back(place(rank, 4));
  places[0].lanes = 3;
  EXPECT_THAT(run(places), Each(""));
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(wirings_[rank].lanes.size(), 3u);
    for (size_t peer = 0; peer < 4; ++peer) {
      EXPECT_EQ(wirings_[rank].members[peer].host, host_name());
      EXPECT_EQ(static_cast<bool>(wirings_[rank].control[peer]), peer != rank);
      for (size_t lane = 0; lane < 3; ++lane) {
        // The two ends of each connection belong together.
        if (peer == rank) continue;
        const int own = wirings_[rank].lanes[lane][peer].fd();
        const int other = wirings_[peer].lanes[lane][rank].fd();
        EXPECT_EQ(Address::local_of(own), Address::peer_of(other));
      }
    }
  }
}

TEST_F(RendezvousTest, BindsToTheNamedAddressAlone) {
  EXPECT_THAT(run({place(0, 2), place(1, 2)}), Each(""));
  for (const Connections& wiring : wirings_) {
    for (const Member& each : wiring.members) EXPECT_THAT(each.address, HasSubstr("127.0.0.1:"));
  }
}

TEST_F(RendezvousTest, WithoutAnInheritedSocketAndInAnyOrder) {
  const Place rank0 = place(0, 2, false), rank1 = place(1, 2);
  listener_.reset();
  std::thread late([&] {
    std::this_thread::sleep_for(300ms);
    EXPECT_NO_THROW(rendezvous(rank0));
  });
  EXPECT_THAT(run({rank1}), Each(""));
  late.join();
}

TEST_F(RendezvousTest, StrangersAreTurnedAwayAndTheJobGoesOn) {
  CapturedLog log;
  std::vector<Fd> strangers;
  for (int i = 0; i < 5; ++i) strangers.push_back(stranger());  // silent ones, ahead of every rank
  strangers.push_back(stranger());
  write_some(strangers.back().get(), std::as_bytes(std::span("GET / HTTP/1.1\r\n\r\n", 18)));
  { Fd scanner = stranger(); }
  strangers.push_back(stranger());
  write_some(strangers.back().get(), std::as_bytes(std::span("trunk", 5)));  // begins well, and says no more
  const auto start = Clock::now();
  EXPECT_THAT(run({place(0, 3), place(1, 3), place(2, 3)}), Each(""));
  EXPECT_LT(seconds_since(start), 3);
  EXPECT_THAT(log.text(),
              AllOf(HasSubstr("turned away a connection from 127.0.0.1:"), HasSubstr("does not speak this protocol"),
                    HasSubstr("closed the connection before proving the job key")));
}

TEST_F(RendezvousTest, ASlowStrangerIsTurnedAwayInTheEnd) {
  CapturedLog log;
  const Fd slow = stranger();
  std::atomic<bool> over{false};
  std::thread dripping([&] {
    for (const char c : std::string("trunkln1aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa")) {
      if (over) return;
      write_some(slow.get(), std::as_bytes(std::span(&c, 1)));
      std::this_thread::sleep_for(200ms);
    }
  });
  std::vector<Place> places{place(0, 2), place(1, 2)};
  std::thread late([&] {
    std::this_thread::sleep_for(5500ms);
    EXPECT_THAT(run({places[1]}), Each(""));
  });
  EXPECT_NO_THROW(rendezvous(places[0]));
  late.join();
  over = true;
  dripping.join();
  EXPECT_THAT(log.text(), HasSubstr("did not prove the job key within 5 s"));
}

TEST_F(RendezvousTest, AStrangerWithAnotherKeyIsTurnedAwayAndTheJobGoesOn) {
  CapturedLog log;
  Place wrong = place(1, 2);
  wrong.job_key = kOtherKey;
  std::vector<std::string> wrong_errors;
  std::thread stranger([&] {
    try {
      rendezvous(wrong);
    } catch (const Error& error) {
      wrong_errors.push_back(error.what());
    }
  });
  std::this_thread::sleep_for(200ms);
  EXPECT_THAT(run({place(0, 2), place(1, 2)}), Each(""));
  listener_.reset();
  EXPECT_THAT(log.text(), HasSubstr("turned away a connection from 127.0.0.1:"));
  stranger.join();
  EXPECT_EQ(wrong_errors.size(), 1u);
}

TEST_F(RendezvousTest, ARankWithAWrongKeyIsToldSoLongBeforeTheTimeout) {
  CapturedLog log;
  std::vector<Place> places{place(0, 2), place(1, 2)};
  places[0].timeout = 5s;
  places[1].timeout = 60s;
  places[1].job_key = kOtherKey;
  const auto errors = run(places);
  EXPECT_THAT(errors[0], HasSubstr("rank 1 of 2 did not join"));
  EXPECT_THAT(errors[1],
              AllOf(HasSubstr("rank 1: the process that listens at 127.0.0.1:"), HasSubstr("TRUNKLINE_JOB_KEY")));
}

TEST_F(RendezvousTest, TheTimeoutNamesTheMissingRanksToAll) {
  std::vector<Place> places{place(0, 4), place(2, 4)};
  for (Place& each : places) each.timeout = 700ms;
  const auto start = Clock::now();
  EXPECT_THAT(run(places),
              Each(HasSubstr("ranks 1, 3 of 4 did not join the job at " + places[0].coordinator + " within 0.7 s")));
  EXPECT_LT(seconds_since(start), 3);
}

TEST_F(RendezvousTest, NobodyListens) {
  Place lonely = place(1, 2);
  lonely.timeout = 300ms;
  listener_.reset();
  EXPECT_THAT(run({lonely})[0], AllOf(HasSubstr("rank 1 could not join rank 0 at " + lonely.coordinator),
                                      HasSubstr("Connection refused"), HasSubstr("errno")));
}

TEST_F(RendezvousTest, EveryAddressOfANameIsTried) {
  Place rank0 = place(0, 2);
  Place rank1 = place(1, 2);
  // Where localhost is ::1 too, that is refused and the next one taken.
  rank1.coordinator = "localhost:" + std::to_string(Address::local_of(listener_.get()).port());
  EXPECT_THAT(run({rank0, rank1}), Each(""));
}

TEST_F(RendezvousTest, SizesThatDiffer) {
  EXPECT_THAT(run({place(0, 2), place(1, 3)}),
              Each(AllOf(HasSubstr("rank 1 (" + host_name()), HasSubstr("was told that the job has 3 ranks"),
                         HasSubstr("rank 0 (" + host_name()), HasSubstr("that it has 2"))));
}

TEST_F(RendezvousTest, ARankBeyondTheSize) {
  EXPECT_THAT(run({place(0, 2), place(5, 2)}),
              Each(AllOf(HasSubstr("rank 5 (" + host_name()), HasSubstr("which has only 2 ranks"))));
}

TEST_F(RendezvousTest, TwoThatSayTheyAreTheSameRank) {
  const auto errors = run({place(0, 3), place(1, 3), place(1, 3)});
  EXPECT_THAT(errors,
              Each(AllOf(HasSubstr("two processes say that they are rank 1: process "), HasSubstr(host_name()))));
}

TEST_F(RendezvousTest, LanesThatDiffer) {
  std::vector<Place> places{place(0, 2), place(1, 2)};
  places[0].lanes = 2;
  places[1].lanes = 3;
  EXPECT_THAT(run(places), Each(AllOf(HasSubstr("wants 3 lanes"), HasSubstr("has 2"), HasSubstr("TRUNKLINE_LANES"))));
}

TEST_F(RendezvousTest, SettingsThatDiffer) {
  std::vector<Place> places{place(0, 3), place(1, 3), place(2, 3)};
  for (Place& each : places) each.settings = {{"FIRST", "on"}, {"SECOND", "64"}};
  places[2].settings[1].value = "128";
  EXPECT_THAT(run(places), ::testing::Contains(AllOf(HasSubstr("rank 2 (" + host_name()),
                                                     HasSubstr(") has 128, rank 0 (" + host_name()),
                                                     HasSubstr(") has 64: give SECOND alike to every rank"))));
}

TEST_F(RendezvousTest, WireVersionsThatDiffer) {
  const Place rank0 = place(0, 2);
  const std::string said =
      fmt::format("rank 1 speaks wire version {}, rank 0 ({}) version {}", kWireVersion + 1, host_name(), kWireVersion);
  std::vector<std::string> errors;
  std::thread newer([&] {
    const Fd fd = stranger();
    const std::string hello = Encoder().put(kWireVersion + 1).take();
    EXPECT_EQ(prove(fd.get(), JobKey(kKey), {Claim::Purpose::join, 0, 1, 0}, hello, {Deadline::after(5s)}),
              Verdict::accepted);
    MessageStream stream{Fd(::dup(fd.get()))};
    std::optional<Message> message;
    while (wait_for(stream.fd(), POLLIN, {Deadline::after(5s)}) && !message) {
      stream.read();
      message = stream.next();
    }
    ASSERT_TRUE(message);
    EXPECT_EQ(message->type, Message::Type::refusal);
    EXPECT_THAT(message->payload, HasSubstr(said));
  });
  EXPECT_THAT(run({rank0})[0], HasSubstr(said));
  newer.join();
}

TEST_F(RendezvousTest, ARankThatJoinsAndDiesIsNamedAtOnce) {
  const Place rank0 = place(0, 3);
  std::thread dying([&] {
    const Fd fd = stranger();
    const std::string hello = Encoder()
                                  .put(kWireVersion)
                                  .put(int32_t{3})
                                  .put(int32_t{0})
                                  .put(int64_t{4711})
                                  .put(std::string_view("far"))
                                  .put(std::string_view("127.0.0.1:1"))
                                  .put(uint32_t{0})
                                  .take();
    prove(fd.get(), JobKey(kKey), {Claim::Purpose::join, 0, 2, 0}, hello, {Deadline::after(5s)});
  });
  const auto start = Clock::now();
  EXPECT_THAT(run({rank0})[0], HasSubstr("rank 2 (far, process 4711) went away before the ranks were connected"));
  EXPECT_LT(seconds_since(start), 2);
  dying.join();
}

TEST_F(RendezvousTest, WithoutAKeyOnLoopbackOnly) {
  std::vector<Place> places{place(0, 2), place(1, 2)};
  for (Place& each : places) each.job_key.clear();
  EXPECT_THAT(run(places), Each(""));
  for (Place& each : places) each.coordinator = "192.0.2.1:5000";
  EXPECT_THAT(run(places), Each(AllOf(HasSubstr("192.0.2.1:5000 can be reached from other machines"),
                                      HasSubstr("TRUNKLINE_JOB_KEY"))));
}

TEST_F(RendezvousTest, AddressesThatCannotBe) {
  const auto error_at = [&](const std::string& coordinator) {
    Place bad = place(0, 2, false);
    bad.coordinator = coordinator;
    bad.timeout = 300ms;
    return run({bad})[0];
  };
  EXPECT_THAT(error_at("0.0.0.0:5000"), HasSubstr("name the address of rank 0"));
  EXPECT_THAT(error_at("127.0.0.1"), HasSubstr("\"127.0.0.1\" is not an address"));
  EXPECT_THAT(error_at("127.0.0.1:99999"), HasSubstr("is not an address"));
  EXPECT_THAT(error_at("::1:5000"), HasSubstr("is not an address"));
  EXPECT_THAT(error_at("198.51.100.7:5000"),
              HasSubstr("cannot listen on 198.51.100.7:5000: it is not an address of this machine"));
  EXPECT_THAT(error_at(Address::local_of(listener_.get()).text()), HasSubstr("another job or another rank 0 has it"));
}

TEST_F(RendezvousTest, AnInheritedDescriptorThatDoesNotListen) {
  Place bad = place(0, 2);
  bad.listen_fd = ::dup(0);
  EXPECT_THAT(run({bad})[0], HasSubstr("TRUNKLINE_LISTEN_FD: descriptor"));
}

}  // namespace
}  // namespace trunkline

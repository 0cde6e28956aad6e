// Cables that are cut, peers that die, wires that cross.
#include <dirent.h>
#include <gtest/gtest.h>

#include <set>

#include "base/random.h"
#include "cluster/cables.h"
#include "fabric/job_test.h"

namespace trunkline::test {
namespace {

std::string spec(const std::string& text, int ranks = 2) { return to_json(wiring_from_spec(text, ranks)); }

TEST(Cut, LosesWhatIsSentUntilTheCableIsMended) {
  Job job(2, spec("2:cut=0-1.0@200,mend=0-1.0@500"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2"), other("rdma_en3");
    Endpoint pair(device, 64, 63);
    pair.connect(job, rank, 1 - rank);
    for (uint64_t i = 1; i < 63; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    // Both say each millisecond what time it is. Of 300 ms the other must hear nothing, but of later ones again.
    const auto now = [] { return std::chrono::steady_clock::now().time_since_epoch(); };
    const auto end = now() + 800ms;
    auto last = now(), longest = 0ns;
    bool down = false, up_again = false;
    while (now() < end) {
      const auto time = now();
      std::memcpy(pair.slot(0), &time, sizeof time);
      REQUIRE(pair.send(0, sizeof time, 0) == 0);
      ibv_wc completion;
      while (ibv_poll_cq(pair.cq, 1, &completion) == 1) {
        REQUIRE(completion.status == IBV_WC_SUCCESS);
        if (completion.opcode != IBV_WC_RECV) continue;
        auto said = last;
        std::memcpy(&said, pair.slot(completion.wr_id), sizeof said);
        longest = std::max(longest, said - last);
        last = said;
        REQUIRE(pair.receive(completion.wr_id, completion.wr_id) == 0);
      }
      ibv_port_attr port;
      REQUIRE(ibv_query_port(device.context, 1, &port) == 0);
      down |= port.state == IBV_PORT_DOWN;
      up_again |= down && port.state == IBV_PORT_ACTIVE;
      REQUIRE(ibv_query_port(other.context, 1, &port) == 0 && port.state == IBV_PORT_ACTIVE);
      std::this_thread::sleep_for(1ms);
    }
    REQUIRE(down && up_again);
    REQUIRE(longest > 290ms);
  }),
            0);
}

// A rank is killed at some instant of a stream in both directions; the other goes on sending, with success and without
// an event; then the killed rank starts again and both connect anew.
TEST(Death, ARankThatIsKilledDisturbsNobody) {
  Job job(2, spec("1"));
  const auto stream = [&job](int rank, int entry, uint64_t messages) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 20'000, 63);
    pair.connect(job, rank, 1 - rank, entry);
    for (uint64_t i = 0; i < 31; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.board->numbers[rank] = 1;
    ibv_wc completion;
    for (uint64_t sent = 0, completed = 0; completed < messages;) {
      if (sent < messages && sent < completed + 30 && pair.send(31 + sent % 30, 20'000, sent) == 0) ++sent;
      while (ibv_poll_cq(pair.cq, 1, &completion) == 1) {
        REQUIRE(completion.status == IBV_WC_SUCCESS);
        if (completion.opcode == IBV_WC_SEND) {
          ++completed;
        } else {
          REQUIRE(pair.receive(completion.wr_id, completion.wr_id) == 0);
        }
      }
      if (completed == messages / 2) job.board->numbers[rank] = 2;
    }
  };
  Random random(1);
  for (int round = 0; round < 12; ++round) {
    job.board->numbers[0] = job.board->numbers[1] = 0;
    const pid_t survivor = job.start(0, [&](int rank) { stream(rank, round, 6000); });
    const pid_t victim = job.start(1, [&](int rank) { stream(rank, round, UINT64_MAX); });
    wait_for([&] { return job.board->numbers[0] >= 1 && job.board->numbers[1] >= 1; });
    std::this_thread::sleep_for(std::chrono::microseconds(random.below(5000)));
    ::kill(victim, SIGKILL);
    EXPECT_EQ(job.wait(victim), 128 + SIGKILL);
    EXPECT_EQ(job.wait(survivor), 0) << round;
  }
}

TEST(Death, ADeadPeerThatNobodyHasReapedIsDead) {
  Job job(2, spec("1"));
  const pid_t victim = job.start(1, [&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 1 << 20, 63);
    pair.connect(job, rank, 0);
    for (uint64_t i = 0; i < 63; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    ::raise(SIGKILL);
  });
  const pid_t sender = job.start(0, [&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 1 << 20, 1);
    pair.connect(job, rank, 1);
    job.barrier();
    // More bytes than lie in a channel, in fewer messages than receives had been posted.
    for (int i = 0; i < 50; ++i) REQUIRE(pair.send(0, 1 << 20, 1) == 0 && pair.next().status == IBV_WC_SUCCESS);
  });
  EXPECT_EQ(job.wait(sender), 0);
  EXPECT_EQ(job.wait(victim), 128 + SIGKILL);
}

TEST(Death, AStoppedPeerIsNotWaitedForEither) {
  Job job(2, spec("1"));
  const pid_t stopped = job.start(1, [&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 63);
    pair.connect(job, rank, 0);
    for (uint64_t i = 0; i < 63; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    ::raise(SIGSTOP);
    // What its receives had taken is there; what came after them is lost.
    for (uint32_t i = 0; i < 63; ++i) {
      REQUIRE(pair.next().wr_id == i);
      REQUIRE(std::memcmp(pair.slot(i), &i, 4) == 0);
    }
  });
  const pid_t sender = job.start(0, [&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 1);
    pair.connect(job, rank, 1);
    job.barrier();
    for (uint32_t i = 0; i < 5000; ++i) {
      std::memcpy(pair.slot(0), &i, 4);
      REQUIRE(pair.send(0, 4096, i) == 0 && pair.next().status == IBV_WC_SUCCESS);
    }
  });
  EXPECT_EQ(job.wait(sender), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(stopped, &status, WUNTRACED), stopped);
  ASSERT_TRUE(WIFSTOPPED(status));
  ::kill(stopped, SIGCONT);
  EXPECT_EQ(job.wait(stopped), 0);
}

std::set<std::string> entries_of(const char* path) {
  std::set<std::string> names;
  DIR* directory = ::opendir(path);
  if (directory == nullptr) return names;
  while (const dirent* entry = ::readdir(directory)) names.insert(entry->d_name);
  ::closedir(directory);
  return names;
}

TEST(Death, NothingIsLeftOfAJobThatWasKilledWhole) {
  const auto before = entries_of("/dev/shm");
  {
    Job job(2, spec("1"));
    std::vector<pid_t> ranks;
    for (int rank = 0; rank < 2; ++rank) {
      ranks.push_back(job.start(rank, [&](int own) {
        OpenDevice device("rdma_en2");
        Endpoint pair(device, 4096, 1);
        pair.connect(job, own, 1 - own);
        ++job.board->numbers[0];
        ::pause();
      }));
    }
    wait_for([&] { return job.board->numbers[0] == 2; });
    EXPECT_EQ(entries_of("/dev/shm"), before) << "the file has no name";
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    for (const pid_t rank : ranks) EXPECT_EQ(job.wait(rank), 128 + SIGKILL);
  }
  EXPECT_EQ(entries_of("/dev/shm"), before);
}

// Cables 0.a-1.b and 0.b-1.a. Each rank believes that devices of one name belong together. Every step succeeds, and
// each message arrives, at the other device.
TEST(Crossed, WiresGoWhereTheyAreAndNobodyIsTold) {
  Job job(2, R"({"ranks": 2, "cables": [{"ends": ["0.a", "1.b"]}, {"ends": ["0.b", "1.a"]}]})");
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice a("a"), b("b");
    Endpoint on_a(a, 64, 1), on_b(b, 64, 1);
    on_a.connect(job, rank, 1 - rank, 0);
    on_b.connect(job, rank, 1 - rank, 1);
    if (rank == 1) REQUIRE(on_a.receive(0, 0) == 0 && on_b.receive(0, 0) == 0);
    job.barrier();
    if (rank == 0) {
      std::memcpy(on_a.slot(0), "via a", 6);
      REQUIRE(on_a.send(0, 6, 0) == 0);
    } else {
      on_b.next();
      REQUIRE(std::strcmp(reinterpret_cast<const char*>(on_b.slot(0)), "via a") == 0);
      ibv_wc completion;
      REQUIRE(!on_a.next_within(30ms, completion));
    }
    job.barrier();
  }),
            0);
}

}  // namespace
}  // namespace trunkline::test

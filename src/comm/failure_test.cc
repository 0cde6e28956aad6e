// Failures: every rank ends with one error that names the cause, within seconds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>

#include "base/file.h"
#include "comm/ranks_test.h"

namespace trunkline::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;

void sum_forever(Group& group, size_t count, const RankProcess::Ready& ready) {
  std::vector<float> in(count, 1.0f), out(count);
  for (int i = 0;; ++i) {
    group.all_sum(in.data(), out.data(), count, Dtype::f32);
    if (i == 3) ready();
  }
}

class KilledRank : public ::testing::TestWithParam<size_t> {};

TEST_P(KilledRank, EverySurvivorSaysSoWithinSeconds) {
  const Job job(3);
  auto ranks = start_processes(
      job, [](Group& group, const auto& ready) { sum_forever(group, GetParam(), ready); },
      [](Config& config) { config.lanes = 2; });
  for (RankProcess& each : ranks) each.await_ready();
  ranks[1].signal(SIGKILL);
  const auto start = Clock::now();
  for (const size_t survivor : {0, 2}) {
    const auto end = ranks[survivor].wait();
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.error, AllOf(HasSubstr("rank 1 (" + host_name() + ") died"),
                                 HasSubstr("its last operation was all_sum of"), HasSubstr("(operation ")));
  }
  EXPECT_LT(seconds_since(start), 5);
}

INSTANTIATE_TEST_SUITE_P(Messages, KilledRank, ::testing::Values(10, 4'000'000));

TEST(Failure, DeathBetweenOperationsIsToldAtTheNextCall) {
  const Job job(2);
  auto ranks = start_processes(job, [](Group& group, const auto& ready) {
    group.barrier();
    ready();
    std::this_thread::sleep_for(group.rank() == 0 ? 300ms : 60s);
    group.barrier();
  });
  for (RankProcess& each : ranks) each.await_ready();
  ranks[1].signal(SIGKILL);
  const auto end = ranks[0].wait();
  EXPECT_THAT(end.error, AllOf(HasSubstr("rank 1 ("), HasSubstr("died"), HasSubstr("its last operation was barrier")));
}

TEST(Failure, AStoppedRankIsLateNotDead) {
  const Job job(3);
  auto ranks = start_processes(job, [](Group& group, const auto& ready) {
    const size_t count = 1'000'000;
    std::vector<float> in(count), out(count);
    const auto start = Clock::now();
    int rounds = 0;
    for (float going_on = 1; going_on != 0; ++rounds) {
      if (rounds == 3) ready();
      std::fill(in.begin(), in.end(), static_cast<float>(group.rank() + rounds));
      group.all_sum(in.data(), out.data(), count, Dtype::f32);
      const float expected = static_cast<float>(3 + 3 * rounds);
      if (std::count(out.begin(), out.end(), expected) != static_cast<ptrdiff_t>(count))
        throw std::runtime_error("wrong sum");
      going_on = group.rank() == 0 && seconds_since(start) < 4 ? 1 : 0;
      group.broadcast(&going_on, 1, Dtype::f32, 0);
    }
  });
  for (RankProcess& each : ranks) each.await_ready();
  ranks[2].signal(SIGSTOP);
  std::this_thread::sleep_for(3s);
  ranks[2].signal(SIGCONT);
  for (RankProcess& each : ranks) {
    const auto end = each.wait();
    EXPECT_EQ(end.code, 0) << end.error;
  }
}

TEST(Failure, ARankStoppedForTooLongDoesNotAnswer) {
  const Job job(2);
  auto ranks = start_processes(
      job, [](Group& group, const auto& ready) { sum_forever(group, 1000, ready); },
      [](Config& config) { config.timeout = 2s; });
  for (RankProcess& each : ranks) each.await_ready();
  ranks[1].signal(SIGSTOP);
  const auto end = ranks[0].wait();
  EXPECT_THAT(end.error,
              AllOf(HasSubstr("rank 0 ("), HasSubstr("no progress for 2."), HasSubstr("in all_sum of 1000 float32"),
                    HasSubstr("rank 1 ("), HasSubstr("does not answer though its machine does")));
}

TEST(Failure, ALateRankIsToldFromADeadOne) {
  const auto errors = run_threads(
      3,
      [](Group& group) {
        float value = 1;
        group.all_sum(&value, &value, 1, Dtype::f32);
        if (group.rank() == 1) std::this_thread::sleep_for(1500ms);
        group.barrier();
      },
      [](Config& config) { config.timeout = 600ms; });
  EXPECT_THAT(errors,
              Each(AllOf(Field(&Thrown::kind, ErrorKind::timeout),
                         Field(&Thrown::text, AllOf(HasSubstr("no progress for 0.6 s in barrier (operation 2)"),
                                                    HasSubstr("rank 1 (" + host_name() +
                                                              ") is late, not dead: outside any "
                                                              "operation, the last one was all_sum of 1 float32"))))));
}

TEST(Failure, AnAdvanceKeepsTheTimeoutAway) {
  const auto errors = run_threads(
      2,
      [](Group& group) {
        for (int i = 0; group.rank() == 1 && i < 12; ++i) {
          std::this_thread::sleep_for(100ms);
          group.advance();
        }
        group.barrier();
      },
      [](Config& config) { config.timeout = 600ms; });
  EXPECT_THAT(errors, Each(Field(&Thrown::text, "")));
}

// Stands between rank 1 and rank 0: passes the bytes of every connection on until it cuts one of them.
class Proxy {
 public:
  explicit Proxy(const std::string& target) : target_(Address::resolve(target).front()), thread_([this] { run(); }) {}
  ~Proxy() {
    stop_ = true;
    thread_.join();
  }
  std::string address() const { return Address::local_of(listener_.get()).text(); }

  // Ends connection `index` (in the order in which they came) on both sides, with a FIN or with a RST.
  void cut(size_t index, bool reset) {
    reset_ = reset;
    cut_ = static_cast<int>(index);
  }

 private:
  void run() {
    std::vector<std::array<Fd, 2>> pairs;
    std::vector<std::byte> buffer(1 << 16);
    while (!stop_) {
      if (Fd fd = accept_on(listener_.get())) {
        std::string reason;
        pairs.push_back({std::move(fd), connect_to(target_, {Deadline::after(5s)}, reason)});
      }
      if (const int index = cut_.exchange(-1); index >= 0) {
        for (Fd& end : pairs[static_cast<size_t>(index)]) {
          const linger now{1, 0};
          if (reset_) ::setsockopt(end.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
          end.reset();
        }
      }
      bool moved = false;
      for (auto& pair : pairs) {
        for (size_t side : {0, 1}) moved = pass(pair[side], pair[1 - side], buffer) || moved;
      }
      if (!moved) std::this_thread::sleep_for(100us);
    }
  }
  static bool pass(Fd& from, Fd& to, std::vector<std::byte>& buffer) {
    if (!from || !to) return false;
    const auto count = read_some(from.get(), buffer);
    if (count && *count == 0) return false;
    for (size_t done = 0; count && done < *count;) {
      const auto sent = write_some(to.get(), std::span(buffer).subspan(done, *count - done));
      if (!sent) break;
      done += *sent;
    }
    if (!count) {
      from.reset();
      to.reset();
    }
    return true;
  }

  const Address target_;
  const Fd listener_ = listen_on(Address::resolve("127.0.0.1:0").front());
  std::atomic<int> cut_{-1};
  std::atomic<bool> reset_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Rank 1's connections to rank 0, in order: control, lane 0.
class CutConnection : public ::testing::TestWithParam<std::tuple<size_t, bool>> {};

TEST_P(CutConnection, IsOneErrorOnEveryRank) {
  const auto [index, reset] = GetParam();
  const Job job(3);
  Proxy proxy(job.coordinator());
  std::vector<std::string> errors(3);
  std::vector<std::thread> ranks;
  std::atomic<int> ready{0};
  for (int rank = 0; rank < 3; ++rank) {
    ranks.emplace_back([&, rank] {
      Config config = job.config(rank);
      config.lanes = 1;
      if (rank == 1) config.coordinator = proxy.address();
      try {
        const auto group = Group::connect(config);
        sum_forever(*group, 100'000, [&] { ++ready; });
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (const Deadline deadline = Deadline::after(10s); ready < 3 && !deadline.expired();)
    std::this_thread::sleep_for(1ms);
  const auto start = Clock::now();
  proxy.cut(index, reset);
  for (std::thread& each : ranks) each.join();
  EXPECT_LT(seconds_since(start), 5);
  for (const std::string& each : errors) {
    EXPECT_THAT(each,
                AllOf(HasSubstr("rank "), HasSubstr("its last operation was all_sum of 100000 float32"),
                      ::testing::AnyOf(HasSubstr("control connection ended"), HasSubstr("a data connection to"))));
  }
}

INSTANTIATE_TEST_SUITE_P(, CutConnection, ::testing::Combine(::testing::Values(0, 1), ::testing::Bool()),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) == 0 ? "Control" : "Data") +
                                  (std::get<1>(test.param) ? "Reset" : "Closed");
                         });

// What two ranks call instead of the same.
struct Disagreement {
  const char* name;
  std::function<void(Group&, void*)> first, second;
  const char* first_text;
  const char* second_text;
};

class Mismatch : public ::testing::TestWithParam<Disagreement> {};

TEST_P(Mismatch, IsOneErrorThatNamesBothSides) {
  for (const int lanes : {1, 2}) {
    const auto errors = run_threads(
        2,
        [](Group& group) {
          std::vector<std::byte> data(4'000'000);
          group.barrier();
          (group.rank() == 0 ? GetParam().first : GetParam().second)(group, data.data());
        },
        [&](Config& config) { config.lanes = lanes; });
    EXPECT_THAT(errors,
                Each(AllOf(Field(&Thrown::kind, ErrorKind::mismatch),
                           Field(&Thrown::text,
                                 AllOf(HasSubstr("rank 0 (" + host_name() + ") called " + GetParam().first_text),
                                       HasSubstr("rank 1 (" + host_name() + ") called " + GetParam().second_text))))));
  }
}

const Disagreement kDisagreements[] = {
    {"Count", [](Group& g, void* p) { g.all_sum(p, p, 10, Dtype::f32); },
     [](Group& g, void* p) { g.all_sum(p, p, 11, Dtype::f32); }, "all_sum of 10 float32 by broadcast (operation 2)",
     "all_sum of 11 float32"},
    {"NothingAndMuch", [](Group& g, void* p) { g.all_sum(p, p, 0, Dtype::f32); },
     [](Group& g, void* p) { g.all_sum(p, p, 1'000'000, Dtype::f32); }, "all_sum of 0 float32",
     "all_sum of 1000000 float32 by mesh"},
    {"Dtype", [](Group& g, void* p) { g.all_sum(p, p, 500'000, Dtype::f32); },
     [](Group& g, void* p) { g.all_sum(p, p, 500'000, Dtype::i32); }, "all_sum of 500000 float32",
     "all_sum of 500000 int32"},
    {"Reduction", [](Group& g, void* p) { g.all_max(p, p, 9, Dtype::f32); },
     [](Group& g, void* p) { g.all_min(p, p, 9, Dtype::f32); }, "all_max of 9 float32", "all_min of 9 float32"},
    {"Kind", [](Group& g, void* p) { g.all_gather(p, p, 100'000, Dtype::f32); }, [](Group& g, void*) { g.barrier(); },
     "all_gather of 100000 float32", "barrier (operation 2)"},
    {"Root", [](Group& g, void* p) { g.broadcast(p, 9, Dtype::u8, 0); },
     [](Group& g, void* p) { g.broadcast(p, 9, Dtype::u8, 1); }, "broadcast from rank 0 of 9 uint8",
     "broadcast from rank 1 of 9 uint8"},
    {"SentLess", [](Group& g, void* p) { g.send(p, 10, Dtype::u8, 1); },
     [](Group& g, void* p) { g.recv(p, 20, Dtype::u8, 0); }, "send to rank 1 of 10 uint8 (transfer 1)",
     "recv from rank 0 of 20 uint8 (transfer 1)"},
    {"SentMore", [](Group& g, void* p) { g.send(p, 3'000'000, Dtype::u8, 1); },
     [](Group& g, void* p) { g.recv(p, 20, Dtype::u8, 0); }, "send to rank 1 of 3000000 uint8",
     "recv from rank 0 of 20 uint8"},
    {"BothSend", [](Group& g, void* p) { g.send(p, 1, Dtype::u8, 1); },
     [](Group& g, void* p) { g.send(p, 1, Dtype::u8, 0); }, "send to rank 1 of 1 uint8", "send to rank 0 of 1 uint8"},
    {"BothReceive", [](Group& g, void* p) { g.recv(p, 1, Dtype::u8, 1); },
     [](Group& g, void* p) { g.recv(p, 1, Dtype::u8, 0); }, "recv from rank 1 of 1 uint8",
     "recv from rank 0 of 1 uint8"},
    {"SendAndCollective", [](Group& g, void* p) { g.send(p, 1, Dtype::u8, 1); }, [](Group& g, void*) { g.barrier(); },
     "send to rank 1 of 1 uint8", "barrier"},
};
INSTANTIATE_TEST_SUITE_P(, Mismatch, ::testing::ValuesIn(kDisagreements),
                         [](const auto& test) { return test.param.name; });

// Settings that one rank has otherwise, and what both are told of them before any data crosses.
struct OtherSetting {
  const char* name;
  Tweak tweak;  // of rank 1
  const char* text;
  bool cables = true;  // rank 0 is told to use cables, and rank 1 unless it is told otherwise
};

class OtherSettings : public ::testing::TestWithParam<OtherSetting> {};

TEST_P(OtherSettings, AreNamedWhenRanksConnect) {
  const std::string matrix = ::testing::TempDir() + "other_settings_" + GetParam().name;
  write_file(matrix, R"([[null, "rdma_none"], ["rdma_none", null]])");
  const auto errors = run_threads(
      2, [](Group&) {},
      [&](Config& config) {
        if (GetParam().cables) config.devices = matrix;
        if (config.rank == 1) GetParam().tweak(config);
      });
  EXPECT_THAT(errors, Each(AllOf(Field(&Thrown::kind, ErrorKind::mismatch),
                                 Field(&Thrown::text, AllOf(HasSubstr(GetParam().text), HasSubstr("rank 1 ("),
                                                            HasSubstr("rank 0 ("), HasSubstr("to every rank"))))));
}

const OtherSetting kOtherSettings[] = {
    {"Transport", [](Config& c) { c.devices = ""; }, "give MLX_IBV_DEVICES alike"},
    {"TrunkingFrom", [](Config& c) { c.trunking_from = 1000; }, "give TRUNKLINE_TRUNKING_FROM alike"},
    {"TrunkingFromOverTcp", [](Config& c) { c.trunking_from = 1000; }, "give TRUNKLINE_TRUNKING_FROM alike", false},
    {"Algorithm", [](Config& c) { c.algorithm = Algorithm::broadcast; }, "give --algorithm (TRUNKLINE_ALGORITHM) alike",
     false},
    {"Trunks", [](Config& c) { c.trunks = 1; }, "give TRUNKLINE_TRUNKS alike"},
    {"FrameBytes", [](Config& c) { c.frame_bytes = 1024; }, "give TRUNKLINE_FRAME_BYTES alike"},
    {"Checksum", [](Config& c) { c.checksum = false; }, "give TRUNKLINE_CRC alike"},
    {"Fallback", [](Config& c) { c.tcp_fallback = true; }, "give TRUNKLINE_TCP_FALLBACK alike"},
};
INSTANTIATE_TEST_SUITE_P(, OtherSettings, ::testing::ValuesIn(kOtherSettings),
                         [](const auto& test) { return test.param.name; });

TEST(Failure, AfterOneTheGroupServesNoFurtherCall) {
  run_threads(2, [](Group& group) {
    std::string first, second;
    float data[2] = {};
    try {
      group.all_sum(data, data, group.rank() == 0 ? 1 : 2, Dtype::f32);
    } catch (const Error& error) {
      first = error.what();
    }
    try {
      group.barrier();
    } catch (const Error& error) {
      second = error.what();
    }
    EXPECT_NE(first, "");
    EXPECT_EQ(first, second);
  });
}

TEST(Failure, AnOrderlyExitIsNotADeath) {
  const auto errors = run_threads(3, [](Group& group) {
    group.barrier();
    if (group.rank() == 1) return;
    std::this_thread::sleep_for(200ms);
    // The two that stay still serve each other.
    float value = 7;
    if (group.rank() == 0) group.send(&value, 1, Dtype::f32, 2);
    if (group.rank() == 2) group.recv(&value, 1, Dtype::f32, 0);
  });
  EXPECT_THAT(errors, Each(Field(&Thrown::text, "")));
}

TEST(Failure, ACallThatNeedsARankThatHasLeftSaysSo) {
  const auto errors = run_threads(2, [](Group& group) {
    group.barrier();
    if (group.rank() == 1) return;
    std::this_thread::sleep_for(100ms);
    group.barrier();
  });
  EXPECT_EQ(errors[0].kind, ErrorKind::peer);
  EXPECT_THAT(errors[0].text,
              HasSubstr("rank 1 (" + host_name() + ") has left the job; its last operation was barrier (operation 1)"));
  EXPECT_EQ(errors[1].text, "");
}

TEST(Failure, ARankThatLeavesWhileOthersWaitForIt) {
  const auto errors = run_threads(3, [](Group& group) {
    if (group.rank() == 1) {
      std::this_thread::sleep_for(200ms);
      return;
    }
    std::vector<float> data(1'000'000);
    group.all_sum(data.data(), data.data(), data.size(), Dtype::f32);
  });
  EXPECT_THAT(errors[0].text, HasSubstr("rank 1 (" + host_name() + ") has left the job; it had begun no operation"));
  EXPECT_EQ(errors[2].text, errors[0].text);
}

TEST(Failure, TheReasonOfAnAbortReachesAll) {
  const auto errors = run_threads(3, [](Group& group) {
    float value = 1;
    group.all_sum(&value, &value, 1, Dtype::f32);
    if (group.rank() == 2) group.abort("train.jsonl:7: messages: no such role");
    group.barrier();
  });
  EXPECT_THAT(
      errors,
      Each(AllOf(Field(&Thrown::kind, ErrorKind::peer),
                 Field(&Thrown::text, "rank 2 (" + host_name() + ") failed: train.jsonl:7: messages: no such role"))));
}

TEST(Failure, WaitingAndIdlingUseNoProcessorTime) {
  const auto errors = run_threads(2, [](Group& group) {
    group.barrier();
    if (group.rank() == 1) {
      const std::clock_t before = std::clock();  // of both ranks, one waiting and one sleeping
      std::this_thread::sleep_for(1s);
      EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 20);
    }
    group.barrier();
  });
  EXPECT_THAT(errors, Each(Field(&Thrown::text, "")));
}

TEST(Failure, ASettingThatCanNeverWorkIsRefused) {
  Config config;
  config.frame_bytes = 1000;
  try {
    Group::connect(config);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    EXPECT_THAT(error.what(), HasSubstr("frames of 1000 bytes: it must be a multiple of 64"));
  }
}

TEST(Failure, CallsThatCanNeverWorkAreRefusedAtOnce) {
  const auto errors = run_threads(2, [](Group& group) {
    float data[8] = {};
    EXPECT_THROW(group.send(data, 1, Dtype::f32, group.rank()), Error);
    EXPECT_THROW(group.recv(data, 1, Dtype::f32, 2), Error);
    EXPECT_THROW(group.broadcast(data, 1, Dtype::f32, -1), Error);
    EXPECT_THROW(group.all_sum(data, data + 1, 4, Dtype::f32), Error);
    EXPECT_THROW(group.host_of(2), Error);
    EXPECT_THROW(group.all_sum(data, data, SIZE_MAX / 4, Dtype::f32), Error);
    EXPECT_THROW(group.all_sum(data, data, 1, static_cast<Dtype>(99)), Error);
    group.barrier();  // and nothing is spoilt
  });
  EXPECT_THAT(errors, Each(Field(&Thrown::text, "")));
}

}  // namespace
}  // namespace trunkline::testing

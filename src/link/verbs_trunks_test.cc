// Trunks on emulated cables, up to connected links that carry messages.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "link/verbs_ranks_test.h"

namespace trunkline::test {
namespace {

using testing::HasSubstr;

Wiring two_ranks(const std::string& more, const std::string& cables =
                                              R"([{"ends": ["0.rdma_en2", "1.rdma_en2"]},
                                                  {"ends": ["0.rdma_en3", "1.rdma_en3"]}])") {
  return wiring_from_json(R"({"ranks": 2, "cables": )" + cables + more + "}", "wiring");
}

void expect_good(const std::vector<Ranks::Result>& results) {
  for (const auto& each : results) EXPECT_EQ(each.code, 0) << each.text;
}

void expect_error(const Ranks::Result& result, ErrorKind kind, const std::vector<std::string>& texts) {
  EXPECT_EQ(result.code, 3);
  EXPECT_EQ(result.kind, kind);
  for (const std::string& text : texts) EXPECT_THAT(result.text, HasSubstr(text));
}

TEST(Trunks, JoinEveryLaneAndCable) {
  for (const auto& [ranks, cables, lanes] : {std::tuple{2, 1, 1}, {2, 6, 3}, {3, 2, 2}, {3, 1, 10}}) {
    SCOPED_TRACE(testing::Message() << ranks << " ranks, " << cables << " cables, " << lanes << " lanes");
    Ranks job(wiring_from_spec(std::to_string(cables), ranks),
              [lanes = static_cast<size_t>(lanes)](int, TrunkOptions& options) { options.lanes = lanes; });
    const auto results =
        job.run([&, ranks = ranks, cables = cables, lanes = lanes](int rank, auto& trunks, auto& tell) {
          REQUIRE(trunks.size() == static_cast<size_t>(lanes));
          for (const LaneTrunks& lane : trunks) {
            REQUIRE(lane.trunks.size() == static_cast<size_t>(ranks));
            for (int peer = 0; peer < ranks; ++peer) {
              REQUIRE(lane.trunks[peer].size() == static_cast<size_t>(peer == rank ? 0 : cables));
              for (const TrunkLink& each : lane.trunks[peer]) {
                REQUIRE(each.receives == 32 && each.peer_receives == 32 && each.sends == 32);
              }
            }
          }
          exchange_names(rank, trunks, tell);
        });
    expect_good(results);
    for (const auto& each : results) EXPECT_EQ(each.log, "");
  }
}

TEST(Trunks, MayDifferInTheirCablesAndBeEmpty) {
  Ranks job(wiring_from_json(R"({"ranks": 3, "cables": [{"ends": ["0.a", "1.a"]}, {"ends": ["0.b", "1.b"]},
                                                        {"ends": ["0.c", "1.c"]}, {"ends": ["1.d", "2.a"]}]})",
                             "wiring"),
            [](int, TrunkOptions& options) { options.cables = 2; });
  expect_good(job.run([](int rank, auto& lanes, auto& tell) {
    const size_t counts[3][3] = {{0, 2, 0}, {2, 0, 1}, {0, 1, 0}};
    for (int peer = 0; peer < 3; ++peer) REQUIRE(lanes[0].trunks[peer].size() == counts[rank][peer]);
    REQUIRE(lanes[0].trunks[rank == 1 ? 0 : 1][0].link->name() == (rank == 2 ? "a-d" : "a"));
    exchange_names(rank, lanes, tell);
  }));
}

TEST(Trunks, TakeAsManyRequestsAsTheDeviceReallyDoes) {
  Ranks job(two_ranks(R"(, "limits": {"work_requests": 20, "advertised_work_requests": 100})"),
            [](int rank, TrunkOptions& options) {
              options.receives = rank == 0 ? 60 : 16;
              options.sends = 500;
            });
  expect_good(job.run([](int rank, auto& lanes, auto& tell) {
    for (TrunkLink& each : lanes[0].trunks[1 - rank]) {
      REQUIRE(each.receives == (rank == 0 ? 20 : 16) && each.peer_receives == (rank == 0 ? 16 : 20));
      REQUIRE(each.sends == (rank == 0 ? 20 : 100));
    }
    exchange_names(rank, lanes, tell);
    // What the device refuses is no fault.
    size_t sent = 0;
    MessageLink& link = *lanes[0].trunks[1 - rank][0].link;
    while (link.post_send(lanes[0].slab.data(), 1, sent)) ++sent;
    REQUIRE(sent == 20 && link.fault().empty());
    tell({"", ""});
  }));
}

TEST(Trunks, FindTheAddressAtAnyIndexAndWhenItComesLate) {
  Ranks job(two_ranks(R"(, "devices": [
      {"device": "0.rdma_en2", "gids": [{"table": ["fe80::1", "", "", "", "", "::ffff:10.0.0.1"]}]},
      {"device": "1.rdma_en3", "gids": [{"table": []}, {"at_ms": 700, "table": ["", "::ffff:10.0.0.2"]}]}])"));
  const auto results = job.run(exchange_names);
  expect_good(results);
  EXPECT_GT(results[1].seconds, 0.5);
}

TEST(Trunks, RefuseADeviceWithoutAnAddress) {
  Ranks job(two_ranks(R"(, "devices": [{"device": "1.rdma_en3", "gids": [{"table": ["fe80::7", ""]}]}])"),
            [](int, TrunkOptions& options) { options.timeout = 300ms; });
  const auto results = job.run();
  expect_error(
      results[1], ErrorKind::system,
      {"rank 1: device rdma_en3 has no IPv4-mapped address", "fe80:0000", "give its interface an IPv4 address"});
  expect_error(results[0], ErrorKind::peer, {});
}

TEST(Trunks, SayThatALinkIsSlowerThanThunderbolt5) {
  Ranks job(two_ranks("", R"([{"ends": ["0.a", "1.a"], "link_gbps": 40}, {"ends": ["0.b", "1.b"]}])"));
  const auto results = job.run();
  expect_good(results);
  EXPECT_EQ(results[0].log,
            "warning: rank 0: device a: its link is of 40 Gb/s; RDMA between Macs needs Thunderbolt 5, which has 80\n");
}

TEST(Trunks, RefuseAPortThatIsDown) {
  Ranks job(two_ranks(R"(, "devices": [{"device": "0.rdma_en3", "port_down": true}])"));
  expect_error(job.run()[0], ErrorKind::system, {"rank 0: device rdma_en3: its port is down", "plug in its cable"});
}

TEST(Trunks, RefuseADeviceThatIsNotThere) {
  Ranks job(two_ranks(""), [](int, TrunkOptions& options) {
    options.matrix = {{{}, {"rdma_en7"}}, {{"rdma_en2"}, {}}};
  });
  expect_error(job.run()[0], ErrorKind::input,
               {"rank 0: device rdma_en7 is not there; there are rdma_en2, rdma_en3", "correct the device matrix"});
}

TEST(Trunks, RefuseMoreLanesThanQueuePairs) {
  Ranks job(two_ranks(""), [](int, TrunkOptions& options) { options.lanes = 11; });
  for (const auto& each : job.run()) {
    EXPECT_EQ(each.code, 3);
    EXPECT_TRUE(each.kind == ErrorKind::peer ||
                each.text.ends_with("has 10 queue pairs, and 11 lanes need one each: ask for at most 10 lanes"))
        << each.text;
  }
}

// The errors that devices are made to report, and what is said of them.
TEST(Trunks, TellWhatADeviceRefuses) {
  struct Case {
    const char* call;
    int error;
    std::vector<std::string> texts;
  };
  const Case cases[] = {
      {"open_device", ENOENT, {"cannot be opened: No such file"}},
      {"query_port", EINVAL, {"query of its port: Invalid argument"}},
      {"alloc_pd", ENOMEM, {"gives no protection domain (Cannot allocate memory)"}},
      {"reg_mr", ENOMEM, {"cannot register", "Cannot allocate memory; a device takes some 100 regions"}},
      {"create_cq", ENOMEM, {"makes no completion queue"}},
      {"create_qp", EBUSY, {"has no queue pair left", "free after a reboot"}},
      {"create_qp", EPERM, {"makes no queue pair: Operation not permitted"}},
      {"modify_qp", EINVAL, {"a new queue pair cannot be initialized: Invalid argument"}},
      {"post_send", EINVAL, {"cable rdma_en2: a send of 32 bytes is refused: Invalid argument; unplug and plug it"}},
      {"poll_cq", EIO, {"its completions cannot be read: Input/output error"}},
      {"post_recv", EINVAL, {"took 0 of 32 receives", "Invalid argument"}},
  };
  for (const Case& each : cases) {
    SCOPED_TRACE(each.call);
    Ranks job(two_ranks(
        fmt::format(R"(, "devices": [{{"device": "0.rdma_en2", "errors": {{"{}": {}}}}}])", each.call, each.error)));
    const auto result = job.run()[0];
    expect_error(result, ErrorKind::system, each.texts);
    EXPECT_THAT(result.text, HasSubstr("rank 0: device rdma_en2"));
  }
}

TEST(Trunks, GiveUpADeviceThatHangs) {
  const std::vector<std::string> calls = {"open_device", "query_port", "query_gid", "alloc_pd",
                                          "reg_mr",      "create_cq",  "create_qp", "modify_qp",
                                          "post_recv",   "post_send",  "poll_cq",   "destroy_qp"};
  std::deque<Ranks> jobs;
  for (const std::string& call : calls) {
    jobs.emplace_back(two_ranks(fmt::format(R"(, "devices": [{{"device": "0.rdma_en2", "hangs": ["{}"]}}])", call)),
                      [](int, TrunkOptions& options) { options.timeout = 700ms; });
    jobs.back().start();
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE(calls[i]);
    const auto result = jobs[i].finish()[0];
    EXPECT_LT(result.seconds, 5);
    expect_error(result, ErrorKind::system,
                 {fmt::format("rank 0: device rdma_en2 hangs in {}: unplug and plug its cable", calls[i])});
  }
}

TEST(Trunks, EndTheProcessWhenADeviceHangsInTheCourseOfTheJob) {
  const std::string calls[] = {"post_send", "poll_cq"};
  int told[2][2];
  std::deque<Ranks> jobs;
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(::pipe(told[i]), 0);
    jobs.emplace_back(
        two_ranks(
            fmt::format(R"(, "devices": [{{"device": "0.rdma_en3", "hangs": ["{}"], "hangs_at_ms": 600}}])", calls[i])),
        [&, i](int, TrunkOptions& options) {
          options.on_hang = [&, i](const std::string& text) {
            REQUIRE(::write(told[i][1], text.data(), text.size()) > 0);
          };
        });
    jobs.back().start([](int rank, auto& lanes, auto&) {
      const auto end = std::chrono::steady_clock::now() + (rank == 0 ? 20s : 10ms);
      while (std::chrono::steady_clock::now() < end) {
        MessageCompletion completions[8];
        for (TrunkLink& each : lanes[0].trunks[1 - rank]) {
          each.link->post_send(lanes[0].slab.data(), 8, 0);
          each.link->poll(completions);
        }
        std::this_thread::sleep_for(1ms);
      }
    });
  }
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(jobs[i].finish()[0].code, 1);
    char text[200] = {};
    EXPECT_GT(::read(told[i][0], text, sizeof text - 1), 0);
    EXPECT_EQ(text,
              fmt::format("rank 0: device rdma_en3 hangs in {}: unplug and plug its cable; if that does not help, "
                          "reboot",
                          calls[i]));
    for (const int fd : told[i]) ::close(fd);
  }
}

TEST(Trunks, AreLeftThoughADeviceHangsThen) {
  Ranks job(two_ranks(R"(, "devices": [{"device": "0.rdma_en2", "hangs": ["destroy_qp"], "hangs_at_ms": 700}])"),
            [](int, TrunkOptions& options) { options.timeout = 400ms; });
  const auto results = job.run([](int, auto&, auto&) { std::this_thread::sleep_for(800ms); });
  expect_good(results);
  EXPECT_THAT(results[0].log, HasSubstr("rank 0: device rdma_en2 hangs in destroy_qp"));
}

TEST(Trunks, NeedTheLibrary) {
  Ranks job(two_ranks(""), [](int rank, TrunkOptions& options) {
    options.library = rank == 0 ? "/nonexistent/libibverbs.so.1" : "libm.so.6";
  });
  const auto results = job.run();
  expect_error(results[0], ErrorKind::system, {"RDMA library /nonexistent/libibverbs.so.1", "install it"});
  expect_error(results[1], ErrorKind::system, {"RDMA library libm.so.6", "ibv_get_device_list"});
}

TEST(Trunks, RefuseOptionsThatDiffer) {
  Ranks lanes(two_ranks(""), [](int rank, TrunkOptions& options) { options.lanes = rank == 0 ? 1 : 2; });
  expect_error(lanes.run()[0], ErrorKind::mismatch, {"rank 0 has 1 lanes", "rank 1 has 2"});
  Ranks matrix(two_ranks(""), [](int rank, TrunkOptions& options) {
    if (rank == 0) options.matrix = {{{}, {"rdma_en2"}}, {{"rdma_en2"}, {}}};
  });
  expect_error(matrix.run()[0], ErrorKind::mismatch, {"different device matrices"});
  Ranks uneven(two_ranks(""), [](int, TrunkOptions& options) {
    options.matrix = {{{}, {"rdma_en2", "rdma_en3"}}, {{"rdma_en2"}, {}}};
  });
  for (const auto& each : uneven.run()) expect_error(each, ErrorKind::input, {"device matrix: row 0, column 1"});
}

// As in a program that makes one group after another.
TEST(Trunks, LeaveNothingBehind) {
  Ranks job(two_ranks(R"(, "limits": {"queue_pairs": 3, "memory_regions": 3})"));
  expect_good(job.run([&](int rank, auto& lanes, auto& tell) {
    for (int i = 0; i < 30; ++i) {
      lanes.clear();
      tell({"", ""});
      TrunkOptions options;
      options.rank = rank;
      options.matrix = {{{}, {"rdma_en2", "rdma_en3"}}, {{"rdma_en2", "rdma_en3"}, {}}};
      options.lanes = 3;
      options.slot_bytes = 8192;
      options.receives = options.sends = 32;
      options.extra_bytes = 16384;
      options.library = TRUNKLINE_BINARY_DIR "/fabric/libibverbs.so.1";
      lanes = connect_trunks(options, tell);
      exchange_names(rank, lanes, tell);
    }
  }));
}

TEST(Links, SayWhyADeviceOfAnOldSystemRefusesALongMessage) {
  Ranks job(two_ranks(R"(, "limits": {"message_bytes": 4096})"));
  expect_good(job.run([](int rank, auto& lanes, auto& tell) {
    MessageLink& link = *lanes[0].trunks[1 - rank][0].link;
    REQUIRE(link.post_send(lanes[0].slab.data(), 4096, 0));
    REQUIRE(!link.post_send(lanes[0].slab.data(), 4097, 1));
    REQUIRE(link.fault().find("a send of 4097 bytes is refused: Invalid argument (before macOS 26.3") !=
            std::string::npos);
    tell({"", ""});
  }));
}

// What a queue pair reports in use: one receive that fails is told, an end of the queue pair is the link's.
TEST(Links, TellAReceiveThatFailsAndGoOn) {
  Ranks job(two_ranks("", R"([{"ends": ["0.a", "1.a"], "receive_error": 0.3}])"));
  expect_good(job.run([](int rank, auto& lanes, auto& tell) {
    TrunkLink& trunk = lanes[0].trunks[1 - rank][0];
    uint64_t sent = 0, failed = 0, good = 0;
    const auto end = std::chrono::steady_clock::now() + 10s;
    while (sent < 200 || failed + good < 200) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      // The peer has taken all that was sent but eight.
      if (sent < 200 && sent < failed + good + 4 && trunk.link->post_send(lanes[0].slab.data(), 8, sent)) ++sent;
      MessageCompletion completions[8];
      const size_t count = trunk.link->poll(completions);
      for (size_t i = 0; i < count; ++i) {
        if (completions[i].kind == MessageCompletion::Kind::sent) continue;
        ++(completions[i].good ? good : failed);
        REQUIRE(completions[i].bytes == (completions[i].good ? 8 : 0));
        trunk.link->post_receive(trunk.receive_slots + completions[i].id * 8192, 8192, completions[i].id);
      }
    }
    REQUIRE(failed > 20 && good > 100 && trunk.link->fault().empty());
    tell({"", ""});
  }));
}

TEST(Links, OfADeviceThatRefusesAreOutOfUseAndTheirSendsCompleted) {
  Ranks job(two_ranks(""));
  const auto results = job.run([](int rank, auto& lanes, auto& tell) {
    MessageLink& link = *lanes[0].trunks[1 - rank][0].link;
    if (rank == 1) {
      // Longer than the peer's receive: its queue pair ends.
      REQUIRE(link.post_send(lanes[0].slab.data(), 10'000, 1));
      tell({"", ""});
    } else {
      tell({"", ""});
      MessageCompletion completions[8];
      const auto end = std::chrono::steady_clock::now() + 5s;
      while (link.fault().empty()) {
        REQUIRE(std::chrono::steady_clock::now() < end);
        REQUIRE(link.poll(completions) == 0);
      }
      REQUIRE(link.fault() == "rank 0: device rdma_en2: cable rdma_en2: a message longer than its receive (status 1)");
      REQUIRE(!link.post_send(lanes[0].slab.data(), 1, 1));
      for (int i = 0; i < 100; ++i) REQUIRE(link.poll(completions) == 0);
    }
    // The other cable carries on.
    lanes[0].trunks[1 - rank].erase(lanes[0].trunks[1 - rank].begin());
    exchange_names(rank, lanes, tell);
  });
  expect_good(results);
  EXPECT_THAT(results[0].log, HasSubstr("a message longer than its receive"));
}

}  // namespace
}  // namespace trunkline::test

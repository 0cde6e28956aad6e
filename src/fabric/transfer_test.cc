// Messages between ranks: what arrives, when, and what does not.
#include <gtest/gtest.h>

#include "base/random.h"
#include "cluster/cables.h"
#include "fabric/job_test.h"

namespace trunkline::test {
namespace {

std::string spec(const char* text, int ranks = 2) { return to_json(wiring_from_spec(text, ranks)); }

void fill(std::byte* bytes, size_t size, uint64_t seed) {
  Random random(seed);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(random.next());
}

bool filled(const std::byte* bytes, size_t size, uint64_t seed) {
  Random random(seed);
  for (size_t i = 0; i < size; ++i) {
    if (bytes[i] != static_cast<std::byte>(random.next())) return false;
  }
  return true;
}

TEST(Transfer, EverySizeArrivesWhole) {
  static constexpr size_t kSizes[] = {1, 64, 216, 217, 4096, 65536, 65600, 1 << 20, 16 << 20};
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 16 << 20, 1);
    pair.connect(job, rank, 1 - rank);
    for (const size_t size : kSizes) {
      if (rank == 1) REQUIRE(pair.receive(0, size) == 0);
      job.barrier();
      if (rank == 0) {
        fill(pair.slot(0), size, size);
        REQUIRE(pair.send(0, size, size) == 0);
      }
      const ibv_wc completion = pair.next();
      REQUIRE(completion.status == IBV_WC_SUCCESS && completion.wr_id == size && completion.qp_num == pair.qp->qp_num);
      REQUIRE(completion.opcode == (rank == 0 ? IBV_WC_SEND : IBV_WC_RECV));
      if (rank == 1) REQUIRE(completion.byte_len == size && filled(pair.slot(0), size, size));
    }
    ibv_sge sge{reinterpret_cast<uint64_t>(pair.slot(0)), (16 << 20) + 1, pair.mr->lkey};
    ibv_send_wr request{};
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    ibv_send_wr* bad = nullptr;
    REQUIRE(ibv_post_send(pair.qp, &request, &bad) == EINVAL && bad == &request);
  }),
            0);
}

TEST(Transfer, ListsOfRequestsImmediateDataAndEmptyMessages) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 4);
    pair.connect(job, rank, 1 - rank);
    for (uint64_t id = 0; id < 2 && rank == 1; ++id) REQUIRE(pair.receive(0, id) == 0);
    job.barrier();
    if (rank == 0) {
      ibv_send_wr second{};
      second.wr_id = 2;
      second.opcode = IBV_WR_SEND_WITH_IMM;
      second.imm_data = 0x12345678;
      second.send_flags = IBV_SEND_SIGNALED;
      ibv_send_wr first{};
      first.opcode = IBV_WR_SEND;
      first.next = &second;
      ibv_send_wr* bad = nullptr;
      REQUIRE(ibv_post_send(pair.qp, &first, &bad) == 0);
      REQUIRE(pair.next().wr_id == 2);  // the first was not signaled
      for (const ibv_wr_opcode opcode :
           {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_TSO}) {
        first.opcode = opcode;
        first.next = nullptr;
        REQUIRE(ibv_post_send(pair.qp, &first, &bad) == EOPNOTSUPP && bad == &first);
      }
      first.opcode = IBV_WR_SEND;
      first.num_sge = 2;
      REQUIRE(ibv_post_send(pair.qp, &first, &bad) == EINVAL);
      REQUIRE(pair.send(0, 1, 0, IBV_SEND_INLINE) == EINVAL);
    } else {
      const ibv_wc first = pair.next(), second = pair.next();
      REQUIRE(first.wr_id == 0 && first.byte_len == 0 && first.wc_flags == 0);
      REQUIRE(second.wr_id == 1 && second.wc_flags == IBV_WC_WITH_IMM && second.imm_data == 0x12345678);
    }
    job.barrier();
  }),
            0);
}

TEST(Transfer, SixtyThreeRequestsAreAcceptedThoughMoreAreAdvertised) {
  Job job(2, spec("1:gbps=0.001"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 1, 256);
    pair.connect(job, rank, 1 - rank);
    for (int i = 0; i < 63; ++i) REQUIRE(pair.receive(0, 1) == 0);
    REQUIRE(pair.receive(0, 1) == ENOMEM);
    for (int i = 0; i < 63; ++i) REQUIRE(pair.send(0, 4096, 1) == 0);
    REQUIRE(pair.send(0, 4096, 1) == ENOMEM);
    while (pair.next().opcode != IBV_WC_SEND) continue;
    REQUIRE(pair.send(0, 4096, 1) == 0);
    REQUIRE(pair.send(0, 4096, 1) == ENOMEM);
    Endpoint shallow(device, 4096, 1, 3);
    for (int i = 0; i < 3; ++i) REQUIRE(shallow.receive(0, 1) == 0);
    REQUIRE(shallow.receive(0, 1) == ENOMEM);
  }),
            0);
}

TEST(Transfer, AMessageThatFindsNoReceiveIsLostAndItsSenderSucceeds) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 1);
    pair.connect(job, rank, 1 - rank);
    if (rank == 1) REQUIRE(pair.receive(0, 0) == 0);
    job.barrier();
    for (uint64_t id = 1; id <= 3 && rank == 0; ++id) {
      fill(pair.slot(0), 100, id);
      REQUIRE(pair.send(0, 100, id) == 0);
      REQUIRE(pair.next().status == IBV_WC_SUCCESS);
    }
    job.barrier();
    // Receives posted now are for what comes from now on, although nobody has polled in between.
    if (rank == 1) REQUIRE(pair.receive(0, 1) == 0);
    job.barrier();
    if (rank == 0) {
      fill(pair.slot(0), 100, 4);
      REQUIRE(pair.send(0, 100, 4) == 0);
    } else {
      REQUIRE(pair.next().wr_id == 0 && filled(pair.slot(0), 100, 1));
      REQUIRE(pair.next().wr_id == 1 && filled(pair.slot(0), 100, 4));
      ibv_wc completion;
      REQUIRE(!pair.next_within(50ms, completion));
    }
    job.barrier();
  }),
            0);
}

TEST(Transfer, AReceiverThatDoesNotPollKeepsWhatItsReceivesTook) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 65536, 63);
    pair.connect(job, rank, 1 - rank);
    for (uint64_t i = 0; i < 63 && rank == 1; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    for (uint64_t i = 0; i < 2000 && rank == 0; ++i) {  // more than any ring holds
      fill(pair.slot(0), 64, i);
      REQUIRE(pair.send(0, 65536, i) == 0);
      REQUIRE(pair.next().status == IBV_WC_SUCCESS);
    }
    job.barrier();
    for (uint64_t i = 0; i < 63 && rank == 1; ++i) {
      REQUIRE(pair.next().wr_id == i);
      REQUIRE(filled(pair.slot(i), 64, i));
    }
    ibv_wc completion;
    if (rank == 1) REQUIRE(!pair.next_within(50ms, completion));
  }),
            0);
}

TEST(Transfer, BeforeMacOs263OneFrameAMessage) {
  Job job(2, R"({"ranks": 2, "limits": {"message_bytes": 4096}, "cables": [{"ends": ["0.rdma_en2", "1.rdma_en2"]}]})");
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 8192, 1);
    pair.connect(job, rank, 1 - rank);
    REQUIRE(pair.send(0, 4097, 1) == EINVAL);
    REQUIRE(pair.send(0, 4096, 1) == 0);
    ibv_port_attr port;
    REQUIRE(ibv_query_port(device.context, 1, &port) == 0 && port.max_msg_sz == 4096);
  }),
            0);
}

TEST(Transfer, ErrorsOfTheReceiverEndItsQueuePair) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    for (int round = 0; round < 2; ++round) {
      Endpoint pair(device, 4096, 2);
      pair.connect(job, rank, 1 - rank, round);
      if (rank == 1) {
        ibv_sge sge{reinterpret_cast<uint64_t>(pair.slot(0)), 50, round == 0 ? pair.mr->lkey : pair.mr->lkey + 256};
        ibv_recv_wr request{.wr_id = 1, .next = nullptr, .sg_list = &sge, .num_sge = 1};
        ibv_recv_wr* bad = nullptr;
        REQUIRE(ibv_post_recv(pair.qp, &request, &bad) == 0);
        REQUIRE(pair.receive(1, 2) == 0);
      }
      job.barrier();
      if (rank == 0) REQUIRE(pair.send(0, 51 - round, 3) == 0 && pair.next().status == IBV_WC_SUCCESS);
      if (rank == 1) {
        REQUIRE(pair.next().status == (round == 0 ? IBV_WC_LOC_LEN_ERR : IBV_WC_LOC_PROT_ERR));
        REQUIRE(pair.next().status == IBV_WC_WR_FLUSH_ERR);
      }
      job.barrier();
    }
    // And of the sender: a key that is not registered.
    Endpoint pair(device, 4096, 1);
    pair.connect(job, rank, 1 - rank, 2);
    pair.mr->lkey += 256;
    REQUIRE(pair.send(0, 8, 1) == 0);
    REQUIRE(pair.next().status == IBV_WC_LOC_PROT_ERR);
    REQUIRE(pair.send(0, 8, 2) == 0 && pair.next().status == IBV_WC_WR_FLUSH_ERR);
  }),
            0);
}

// What arrived of messages 1 to `count`, sent in order.
struct Arrival {
  uint32_t number;
  ibv_wc_status status;
  bool whole;
  bool operator==(const Arrival&) const = default;
};

std::vector<Arrival> arrivals(const std::string& wiring, uint32_t count) {
  constexpr size_t kBytes = 512;
  Job job(2, wiring);
  void* shared = ::mmap(nullptr, count * sizeof(Arrival), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto* seen = static_cast<Arrival*>(shared);
  std::atomic<uint64_t>&sent = job.board->numbers[0], &settled = job.board->numbers[1], &total = job.board->numbers[2];
  const auto compose = [](std::byte* bytes, uint32_t n) {
    fill(bytes, kBytes, n);
    std::memcpy(bytes, &n, sizeof n);
  };
  const auto sender = [&](Endpoint& pair) {
    for (uint32_t n = 1; n <= count; ++n) {
      compose(pair.slot(0), n);
      REQUIRE(pair.send(0, kBytes, n) == 0 && pair.next().status == IBV_WC_SUCCESS);
      sent = n;
      // No more than the receives that are posted: only the cable loses any.
      if (n % 60 == 0) wait_for([&] { return settled == n; });
    }
  };
  const auto receiver = [&](Endpoint& pair) {
    std::byte expected[kBytes];
    ibv_wc completion;
    while (settled < count) {
      const uint64_t before = sent;  // on a cable without delay all these have come
      if (ibv_poll_cq(pair.cq, 1, &completion) == 0) {
        settled = before;
        std::this_thread::sleep_for(10us);
        continue;
      }
      std::byte* bytes = pair.slot(completion.wr_id);
      Arrival& arrival = seen[total++];
      std::memcpy(&arrival.number, bytes, sizeof arrival.number);
      arrival.status = completion.status;
      compose(expected, arrival.number);
      arrival.whole = std::memcmp(bytes, expected, kBytes) == 0;
      std::memset(bytes, 0, kBytes);
      REQUIRE(pair.receive(completion.wr_id, completion.wr_id) == 0);
    }
  };
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, kBytes, 63);
    pair.connect(job, rank, 1 - rank);
    for (uint64_t i = 0; i < 63 && rank == 1; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    rank == 0 ? sender(pair) : receiver(pair);
  }),
            0);
  std::vector<Arrival> result(seen, seen + total);
  ::munmap(shared, count * sizeof(Arrival));
  return result;
}

TEST(Fates, AreTheSameInEveryRunOfASeed) {
  const auto first = arrivals(spec("1:loss=0.1,damage=0.1,seed=5"), 800);
  EXPECT_EQ(first, arrivals(spec("1:loss=0.1,damage=0.1,seed=5"), 800));
  EXPECT_NE(first, arrivals(spec("1:loss=0.1,damage=0.1,seed=6"), 800));
  EXPECT_NEAR(static_cast<double>(first.size()), 720, 55);
  const auto damaged = std::count_if(first.begin(), first.end(), [](const Arrival& a) { return !a.whole; });
  EXPECT_NEAR(static_cast<double>(damaged), 72, 50);
  for (const Arrival& arrival : first) EXPECT_EQ(arrival.status, IBV_WC_SUCCESS);
}

TEST(Fates, WithoutChancesNothingIsLostOrDamaged) {
  const auto all = arrivals(spec("1"), 800);
  ASSERT_EQ(all.size(), 800u);
  for (uint32_t i = 0; i < 800; ++i) EXPECT_EQ(all[i], (Arrival{i + 1, IBV_WC_SUCCESS, true}));
}

TEST(Fates, AReceiveMayCompleteWithAnErrorAndLeaveTheBuffer) {
  const auto all = arrivals(R"({"ranks": 2, "seed": 4, "cables": [{"ends": ["0.rdma_en2", "1.rdma_en2"],
                               "receive_error": 0.05}]})",
                            400);
  ASSERT_EQ(all.size(), 400u);
  int errors = 0;
  for (uint32_t i = 0; i < 400; ++i) {
    if (all[i].status == IBV_WC_SUCCESS) {
      EXPECT_EQ(all[i], (Arrival{i + 1, IBV_WC_SUCCESS, true}));
    } else {
      EXPECT_EQ(all[i].status, IBV_WC_GENERAL_ERR);
      EXPECT_EQ(all[i].number, 0u) << "the buffer was cleared before it was posted";
      ++errors;
    }
  }
  EXPECT_NEAR(errors, 20, 18);
}

// Two queue pairs send 20 messages of 64 KiB each at once over a cable of 0.4 Gbps: 52 ms and 10 ms of delay.
TEST(Pacing, QueuePairsShareTheirCable) {
  Job job(2, spec("1:gbps=0.4,delay_us=10000"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint one(device, 65536, 20), two(device, 65536, 20);
    one.connect(job, rank, 1 - rank, 0);
    two.connect(job, rank, 1 - rank, 1);
    for (uint64_t i = 0; i < 20 && rank == 1; ++i) REQUIRE(one.receive(i, i) == 0 && two.receive(i, i) == 0);
    job.barrier();
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] { return std::chrono::steady_clock::now() - start; };
    for (uint64_t i = 0; i < 20 && rank == 0; ++i) REQUIRE(one.send(i, 65536, i) == 0 && two.send(i, 65536, i) == 0);
    if (rank == 0) {
      REQUIRE(one.next().status == IBV_WC_SUCCESS);
      REQUIRE(elapsed() > 1.3ms);
      for (int i = 0; i < 19; ++i) one.next();
      for (int i = 0; i < 20; ++i) two.next();
      REQUIRE(elapsed() > 52ms);
      job.barrier();
    } else {
      job.barrier();  // the sender has been told of all
      for (int i = 0; i < 20; ++i) {
        one.next();
        two.next();
      }
    }
  }),
            0);
}

TEST(Pacing, DelayAndSpeedAddUp) {
  Job job(2, spec("1:gbps=0.8,delay_us=30000"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 1 << 20, 1);
    pair.connect(job, rank, 1 - rank);
    if (rank == 1) REQUIRE(pair.receive(0, 0) == 0);
    job.barrier();
    const auto now = [] { return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()); };
    if (rank == 0) {
      job.board->numbers[0] = now();
      REQUIRE(pair.send(0, 1 << 20, 0) == 0);
    }
    pair.next();
    // 10.48 ms until the cable has taken it, 30 more until it is there.
    REQUIRE(now() - job.board->numbers[0] > (rank == 0 ? 10'480'000u : 40'480'000u));
  }),
            0);
}

TEST(Pacing, BothDirectionsRunAtOnce) {
  Job job(2, spec("1:gbps=0.4"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 65536, 40);
    pair.connect(job, rank, 1 - rank);
    for (uint64_t i = 0; i < 20; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    const auto start = std::chrono::steady_clock::now();
    for (uint64_t i = 20; i < 40; ++i) REQUIRE(pair.send(i, 65536, i) == 0);
    for (int i = 0; i < 40; ++i) REQUIRE(pair.next().status == IBV_WC_SUCCESS);
    REQUIRE(std::chrono::steady_clock::now() - start > 26ms);
    job.barrier();
  }),
            0);
}

TEST(Threads, QueuePairsOfADeviceAreUsedAtOnce) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    constexpr int kPairs = 4;
    constexpr uint64_t kMessages = 200, kDepth = 16;
    OpenDevice device("rdma_en2");
    std::vector<std::unique_ptr<Endpoint>> pairs;
    for (int i = 0; i < kPairs; ++i) {
      pairs.push_back(std::make_unique<Endpoint>(device, 20'000, 2 * kDepth));
      pairs.back()->connect(job, rank, 1 - rank, i);
      for (uint64_t slot = 0; slot < kDepth; ++slot) REQUIRE(pairs.back()->receive(slot, slot) == 0);
    }
    job.barrier();
    std::vector<std::thread> threads;
    for (int i = 0; i < kPairs; ++i) {
      threads.emplace_back([&, i] {
        Endpoint& pair = *pairs[static_cast<size_t>(i)];
        // Half a window ahead of what has come back, so that a receive is always posted.
        uint64_t sent = 0, received = 0, completed = 0;
        while (received < kMessages || completed < kMessages) {
          while (sent < kMessages && sent < received + kDepth / 2 && sent < completed + kDepth) {
            const uint64_t slot = kDepth + sent % kDepth;
            fill(pair.slot(slot), 20'000, sent * 10 + static_cast<uint64_t>(i));
            REQUIRE(pair.send(slot, 20'000, slot) == 0);
            ++sent;
          }
          const ibv_wc completion = pair.next();
          REQUIRE(completion.status == IBV_WC_SUCCESS);
          if (completion.opcode == IBV_WC_SEND) {
            ++completed;
          } else {
            REQUIRE(filled(pair.slot(completion.wr_id), 20'000, received++ * 10 + static_cast<uint64_t>(i)));
            REQUIRE(pair.receive(completion.wr_id, completion.wr_id) == 0);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    job.barrier();
  }),
            0);
}

TEST(Extended, SendsAndPolls) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 4, 4, true);
    ibv_qp_ex* qp = ibv_qp_to_qp_ex(pair.qp);
    REQUIRE(qp != nullptr);
    REQUIRE(ibv_qp_to_qp_ex(Endpoint(device, 4096, 1).qp) == nullptr);
    pair.connect(job, rank, 1 - rank);
    for (uint64_t i = 0; i < 3 && rank == 1; ++i) REQUIRE(pair.receive(i, i) == 0);
    job.barrier();
    ibv_poll_cq_attr poll{};
    auto* cq = reinterpret_cast<ibv_cq_ex*>(pair.cq);
    if (rank == 0) {
      const auto send = [&](uint64_t id) {
        qp->wr_id = id;
        qp->wr_flags = IBV_SEND_SIGNALED;
        ibv_wr_send_imm(qp, static_cast<__be32>(id));
        ibv_wr_set_sge(qp, pair.mr->lkey, reinterpret_cast<uint64_t>(pair.slot(0)), 100);
      };
      ibv_wr_start(qp);
      for (uint64_t id = 0; id < 5; ++id) send(id);
      REQUIRE(ibv_wr_complete(qp) == ENOMEM);  // none of the five
      ibv_wr_start(qp);
      send(9);
      ibv_wr_abort(qp);
      fill(pair.slot(0), 100, 1);
      ibv_wr_start(qp);
      for (uint64_t id = 0; id < 3; ++id) send(id);
      REQUIRE(ibv_wr_complete(qp) == 0);
      REQUIRE(ibv_start_poll(cq, &poll) == 0);
      REQUIRE(cq->wr_id == 0 && cq->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cq) == IBV_WC_SEND);
      REQUIRE(ibv_next_poll(cq) == 0 && ibv_next_poll(cq) == 0 && cq->wr_id == 2);
      REQUIRE(ibv_next_poll(cq) == ENOENT);
      ibv_end_poll(cq);
    } else {
      wait_for([&] { return ibv_start_poll(cq, &poll) == 0; });
      REQUIRE(ibv_wc_read_byte_len(cq) == 100 && ibv_wc_read_imm_data(cq) == 0 && filled(pair.slot(0), 100, 1));
      ibv_end_poll(cq);
      REQUIRE(pair.next().imm_data == 1 && pair.next().imm_data == 2);
    }
    job.barrier();
  }),
            0);
}

TEST(Events, TellOfCompletions) {
  Job job(2, spec("1"));
  EXPECT_EQ(job.run([&](int rank) {
    OpenDevice device("rdma_en2");
    ibv_comp_channel* channel = ibv_create_comp_channel(device.context);
    REQUIRE(channel != nullptr);
    Endpoint pair(device, 4096, 1);
    // A queue of one's own, with the channel.
    int mark = 0;
    ibv_cq* cq = ibv_create_cq(device.context, 10, &mark, channel, 0);
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.qp_type = IBV_QPT_UC;
    attributes.cap = {10, 10, 1, 1, 0};
    ibv_destroy_qp(pair.qp);
    pair.qp = ibv_create_qp(device.pd, &attributes);
    ibv_qp_attr init = init_attributes();
    REQUIRE(ibv_modify_qp(pair.qp, &init, kInitMask) == 0);
    pair.connect(job, rank, 1 - rank);
    for (int round = 0; round < 5; ++round) {
      if (rank == 1) REQUIRE(pair.receive(0, 0) == 0);
      REQUIRE(ibv_req_notify_cq(cq, 0) == 0);
      job.barrier();
      if (rank == 0) REQUIRE(pair.send(0, 64, 0) == 0);
      ibv_cq* told = nullptr;
      void* user = nullptr;
      REQUIRE(ibv_get_cq_event(channel, &told, &user) == 0);
      REQUIRE(told == cq && user == &mark);
      ibv_ack_cq_events(cq, 1);
      ibv_wc completion;
      REQUIRE(ibv_poll_cq(cq, 1, &completion) == 1);
    }
    REQUIRE(ibv_destroy_comp_channel(channel) == EBUSY);
    REQUIRE(ibv_destroy_qp(pair.qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
    job.barrier();
  }),
            0);
}

}  // namespace
}  // namespace trunkline::test

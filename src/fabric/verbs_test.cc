// Devices, their limits and their faults, up to a connected queue pair.
#include <fcntl.h>
#include <gtest/gtest.h>

#include "cluster/cables.h"
#include "fabric/job_test.h"

namespace trunkline::test {
namespace {

std::string file(const std::string& more) {
  return R"({"ranks": 2, "cables": [{"ends": ["0.rdma_en2", "1.rdma_en2"]}])" + more + "}";
}

std::vector<std::string> names() {
  int count = -1;
  ibv_device** list = ibv_get_device_list(&count);
  REQUIRE(list != nullptr && list[count] == nullptr);
  std::vector<std::string> result;
  for (int i = 0; i < count; ++i) result.push_back(ibv_get_device_name(list[i]));
  ibv_free_device_list(list);
  return result;
}

TEST(Devices, AreOneForEachCableEnd) {
  Job job(3, to_json(wiring_from_spec("2", 3)));
  EXPECT_EQ(job.run([](int) {
    REQUIRE((names() == std::vector<std::string>{"rdma_en2", "rdma_en3", "rdma_en4", "rdma_en5"}));
    OpenDevice device("rdma_en4");
    ibv_port_attr port;
    REQUIRE(ibv_query_port(device.context, 1, &port) == 0);
    REQUIRE(port.state == IBV_PORT_ACTIVE && port.active_mtu == IBV_MTU_4096 &&
            port.link_layer == IBV_LINK_LAYER_ETHERNET);
    REQUIRE(ibv_query_port(device.context, 2, &port) == EINVAL);
    ibv_device_attr attributes;
    REQUIRE(ibv_query_device(device.context, &attributes) == 0);
    REQUIRE(attributes.max_qp == 10 && attributes.max_mr == 100 && attributes.max_sge == 1);
    REQUIRE(std::string(attributes.fw_ver) == "emulated");
    REQUIRE(ibv_dealloc_pd(device.pd) == 0);
    REQUIRE(ibv_close_device(device.context) == 0);
  }),
            0);
}

TEST(Devices, AreEnumeratedAsTheFileListsThem) {
  Job job(1, R"({"ranks": 2, "cables": [{"ends": ["0.a", "1.a"]}, {"ends": ["0.b", "1.b"]}],
                 "devices": [{"device": "0.c"}, {"device": "0.b"}, {"device": "0.a"}]})");
  EXPECT_EQ(job.run([](int) { REQUIRE((names() == std::vector<std::string>{"c", "b", "a"})); }), 0);
}

TEST(Devices, MayBeNone) {
  Job job(1, R"({"ranks": 1})");
  EXPECT_EQ(job.run([](int) { REQUIRE(names().empty()); }), 0);
}

TEST(Devices, WithoutAFabricAreAnError) {
  Job job(1, "{}");
  EXPECT_EQ(job.run([](int) {
    REQUIRE(ibv_get_device_list(nullptr) == nullptr);
    REQUIRE(errno == ENODEV);
  }),
            0);
}

TEST(Limits, TheEleventhQueuePairIsRefused) {
  Job job(1, file(""));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    std::vector<Endpoint> pairs;
    for (int i = 0; i < 10; ++i) pairs.emplace_back(device, 4096, 1);
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = pairs[0].cq;
    attributes.qp_type = IBV_QPT_UC;
    for (int i = 0; i < 3; ++i) {
      REQUIRE(ibv_create_qp(device.pd, &attributes) == nullptr);
      REQUIRE(errno == EBUSY);
    }
    const uint32_t number = pairs[4].qp->qp_num;
    pairs[4].destroy();
    ibv_qp* another = ibv_create_qp(device.pd, &attributes);
    REQUIRE(another != nullptr && another->qp_num != number);
  }),
            0);
}

void leave_ten(int) {
  OpenDevice device("rdma_en2");
  for (int i = 0; i < 10; ++i) new Endpoint(device, 4096, 1);
  ::kill(::getpid(), SIGKILL);
}

TEST(Limits, AKilledProcessGivesItsQueuePairsAndRegionsBack) {
  Job job(1, file(""));
  for (int i = 0; i < 12; ++i) EXPECT_EQ(job.run(leave_ten), 128 + SIGKILL);  // 120 regions
}

TEST(Limits, OrKeepsThemUntilAReboot) {
  Job job(1, file(R"(, "limits": {"keep_crashed_queue_pairs": true})"));
  EXPECT_EQ(job.run(leave_ten), 128 + SIGKILL);
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    ibv_cq* cq = ibv_create_cq(device.context, 1, nullptr, nullptr, 0);
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.qp_type = IBV_QPT_UC;
    REQUIRE(ibv_create_qp(device.pd, &attributes) == nullptr && errno == EBUSY);
  }),
            0);
}

TEST(Limits, AHundredRegions) {
  Job job(1, file(""));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    static char memory[8192];
    std::vector<ibv_mr*> regions;
    for (int i = 0; i < 100; ++i) {
      regions.push_back(ibv_reg_mr(device.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE));
      REQUIRE(regions.back() != nullptr);
    }
    REQUIRE(ibv_reg_mr(device.pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE) == nullptr);
    REQUIRE(errno == ENOMEM);
    REQUIRE(ibv_dealloc_pd(device.pd) == EBUSY);
    REQUIRE(ibv_dereg_mr(regions[50]) == 0);
    REQUIRE(ibv_reg_mr(device.pd, memory, 1, IBV_ACCESS_RELAXED_ORDERING) != nullptr);
    REQUIRE(ibv_reg_mr(device.pd, memory, 1, IBV_ACCESS_REMOTE_WRITE) == nullptr && errno == EINVAL);
  }),
            0);
}

TEST(Limits, OnlyUnreliableConnectedQueuePairsWithOneScatterEntryAndNoInlineData) {
  Job job(1, file(""));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    ibv_qp_init_attr good{};
    good.send_cq = good.recv_cq = ibv_create_cq(device.context, 1, nullptr, nullptr, 0);
    good.qp_type = IBV_QPT_UC;
    good.cap = {4095, 4095, 1, 1, 0};
    REQUIRE(ibv_create_qp(device.pd, &good) != nullptr);
    const auto refused = [&](auto change, int error) {
      ibv_qp_init_attr attributes = good;
      change(attributes);
      errno = 0;
      return ibv_create_qp(device.pd, &attributes) == nullptr && errno == error;
    };
    REQUIRE(refused([](auto& a) { a.qp_type = IBV_QPT_RC; }, EOPNOTSUPP));
    REQUIRE(refused([](auto& a) { a.qp_type = IBV_QPT_UD; }, EOPNOTSUPP));
    REQUIRE(refused([](auto& a) { a.cap.max_send_sge = 2; }, EINVAL));
    REQUIRE(refused([](auto& a) { a.cap.max_recv_sge = 2; }, EINVAL));
    REQUIRE(refused([](auto& a) { a.cap.max_inline_data = 1; }, EINVAL));
    REQUIRE(refused([](auto& a) { a.cap.max_send_wr = 4096; }, EINVAL));
    REQUIRE(ibv_create_srq(device.pd, nullptr) == nullptr && errno == EOPNOTSUPP);
    REQUIRE(ibv_create_ah(device.pd, nullptr) == nullptr && errno == EOPNOTSUPP);
    ibv_qp_init_attr_ex extended{};
    extended.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
    extended.pd = device.pd;
    extended.send_cq = extended.recv_cq = good.send_cq;
    extended.qp_type = IBV_QPT_UC;
    extended.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
    REQUIRE(ibv_create_qp_ex(device.context, &extended) == nullptr && errno == EOPNOTSUPP);
  }),
            0);
}

TEST(Limits, FiftyCyclesLeaveNothingBehind) {
  Job job(1, file(R"(, "limits": {"queue_pairs": 1, "memory_regions": 1})"));
  EXPECT_EQ(job.run([](int) {
    const auto descriptors = [] {
      int count = 0;
      for (int fd = 0; fd < 256; ++fd) count += ::fcntl(fd, F_GETFD) >= 0;
      return count;
    };
    int before = 0;
    for (int i = 0; i < 50; ++i) {
      OpenDevice device("rdma_en2");
      Endpoint pair(device, 4096, 1);
      pair.destroy();
      REQUIRE(ibv_dealloc_pd(device.pd) == 0);
      REQUIRE(ibv_close_device(device.context) == 0);
      if (i == 0) before = descriptors();
    }
    REQUIRE(descriptors() == before);
  }),
            0);
}

// Whether a queue pair can be made ready to receive with this source index and this peer address.
int connect_with(OpenDevice& device, int index, const char* peer) {
  Endpoint pair(device, 4096, 1);
  ibv_gid gid{};
  if (peer != nullptr) {
    unsigned a, b, c, d;
    REQUIRE(std::sscanf(peer, "%u.%u.%u.%u", &a, &b, &c, &d) == 4);
    gid.raw[10] = gid.raw[11] = 0xff;
    const unsigned bytes[] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) gid.raw[12 + i] = static_cast<uint8_t>(bytes[i]);
  }
  ibv_qp_attr attributes = receive_attributes(index, gid, 64);
  const int error = ibv_modify_qp(pair.qp, &attributes, kReceiveMask);
  pair.destroy();
  return error;
}

TEST(Gids, AnIndexWithoutAnIpv4AddressDoesNotConnect) {
  Job job(1,
          file(R"(, "devices": [{"device": "0.rdma_en2", "gids": [{"table": ["fe80::1", "", "::ffff:10.1.2.3"]}]}])"));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    ibv_gid gid;
    REQUIRE(device.find_gid(gid) == 2);
    REQUIRE(gid.raw[12] == 10 && gid.raw[15] == 3);
    REQUIRE(connect_with(device, 0, "10.1.2.4") == EINVAL);
    REQUIRE(connect_with(device, 1, "10.1.2.4") == EINVAL);
    REQUIRE(connect_with(device, 2, nullptr) == EINVAL);
    REQUIRE(connect_with(device, 2, "10.1.2.4") == 0);
    REQUIRE(connect_with(device, 99, "10.1.2.4") == EINVAL);
    ibv_gid_entry entry;
    REQUIRE(ibv_query_gid_ex(device.context, 1, 1, &entry, 0) == ENODATA);
    REQUIRE(ibv_query_gid_ex(device.context, 1, 2, &entry, 0) == 0 && entry.gid_type == IBV_GID_TYPE_ROCE_V2);
    ibv_gid_entry table[8];
    REQUIRE(ibv_query_gid_table(device.context, table, 8, 0) == 2);
  }),
            0);
}

TEST(Gids, ComeLateAndChange) {
  Job job(1, file(R"(, "devices": [{"device": "0.rdma_en2", "gids": [
      {"at_ms": 200, "table": ["::ffff:10.0.0.1"]}, {"at_ms": 400, "table": ["", "::ffff:10.0.0.2"]}]}])"));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    ibv_gid gid;
    REQUIRE(device.find_gid(gid) == -1);
    wait_for([&] { return device.find_gid(gid) == 0; });
    REQUIRE(gid.raw[15] == 1);
    wait_for([&] { return device.find_gid(gid) == 1; });
    REQUIRE(gid.raw[15] == 2);
    REQUIRE(connect_with(device, 0, "10.1.2.4") == EINVAL);
  }),
            0);
}

TEST(Gids, AreResolvedIfAskedFor) {
  Job job(1, file(R"(, "limits": {"resolve_gids": true},
                     "devices": [{"device": "1.rdma_en2", "gids": [{"table": ["", "", "", "::ffff:10.0.0.9"]}]}])"));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    REQUIRE(connect_with(device, 1, "10.0.0.8") == ETIMEDOUT);
    REQUIRE(connect_with(device, 1, "10.0.0.9") == 0);
  }),
            0);
}

TEST(QueuePairs, TakeTheStepsInOrderWithTheRightAttributes) {
  Job job(1, file(""));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    Endpoint pair(device, 4096, 1);  // in INIT
    ibv_gid gid;
    const int index = device.find_gid(gid);
    ibv_qp_attr receive = receive_attributes(index, gid, 64);
    ibv_qp_attr send = send_attributes();
    REQUIRE(ibv_modify_qp(pair.qp, &send, kSendMask) == EINVAL);
    REQUIRE(ibv_modify_qp(pair.qp, &receive, kReceiveMask & ~IBV_QP_RQ_PSN) == EINVAL);
    REQUIRE(ibv_modify_qp(pair.qp, &receive, kReceiveMask | IBV_QP_MIN_RNR_TIMER) == EINVAL);
    ibv_qp_attr local = receive;
    local.ah_attr.is_global = 0;
    REQUIRE(ibv_modify_qp(pair.qp, &local, kReceiveMask) == EINVAL);
    REQUIRE(pair.receive(0, 1) == 0);
    REQUIRE(pair.send(0, 1, 1) == EINVAL);
    REQUIRE(ibv_modify_qp(pair.qp, &receive, kReceiveMask) == 0);
    REQUIRE(pair.qp->state == IBV_QPS_RTR);
    REQUIRE(pair.send(0, 1, 1) == EINVAL);
    REQUIRE(ibv_modify_qp(pair.qp, &send, kSendMask) == 0);
    ibv_qp_attr now;
    ibv_qp_init_attr init;
    REQUIRE(ibv_query_qp(pair.qp, &now, IBV_QP_STATE, &init) == 0);
    REQUIRE(now.qp_state == IBV_QPS_RTS && now.dest_qp_num == 64 && now.rq_psn == 7 && init.qp_type == IBV_QPT_UC);
    REQUIRE(ibv_destroy_cq(pair.cq) == EBUSY);
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    REQUIRE(ibv_modify_qp(pair.qp, &error, IBV_QP_STATE) == 0);
    const ibv_wc completion = pair.next();
    REQUIRE(completion.status == IBV_WC_WR_FLUSH_ERR && completion.wr_id == 1);
    error.qp_state = IBV_QPS_RESET;
    REQUIRE(ibv_modify_qp(pair.qp, &error, IBV_QP_STATE) == 0);
    REQUIRE(pair.receive(0, 1) == EINVAL);
    ibv_qp_attr again = init_attributes();
    REQUIRE(ibv_modify_qp(pair.qp, &again, kInitMask) == 0);
  }),
            0);
}

TEST(Faults, APortThatIsDownGivesNoProtectionDomain) {
  Job job(1, file(R"(, "devices": [{"device": "0.rdma_en2", "port_down": true}, {"device": "0.rdma_en9"}])"));
  EXPECT_EQ(job.run([](int) {
    ibv_device** list = ibv_get_device_list(nullptr);
    for (int i = 0; i < 2; ++i) {  // the second has no cable, which comes to the same
      ibv_context* context = ibv_open_device(list[i]);
      REQUIRE(context != nullptr);
      ibv_port_attr port;
      REQUIRE(ibv_query_port(context, 1, &port) == 0 && port.state == IBV_PORT_DOWN);
      REQUIRE(ibv_alloc_pd(context) == nullptr);
    }
  }),
            0);
}

TEST(Faults, CallsFailAsOrdered) {
  Job job(1,
          file(R"(, "devices": [{"device": "0.rdma_en2", "errors": {"modify_qp": 60, "reg_mr": 12, "poll_cq": 5}}])"));
  EXPECT_EQ(job.run([](int) {
    OpenDevice device("rdma_en2");
    char memory[16];
    REQUIRE(ibv_reg_mr(device.pd, memory, 16, 0) == nullptr && errno == 12);
    ibv_qp_init_attr attributes{};
    attributes.send_cq = attributes.recv_cq = ibv_create_cq(device.context, 1, nullptr, nullptr, 0);
    attributes.qp_type = IBV_QPT_UC;
    ibv_qp* qp = ibv_create_qp(device.pd, &attributes);
    ibv_qp_attr init = init_attributes();
    REQUIRE(ibv_modify_qp(qp, &init, kInitMask) == 60);
    ibv_wc completion;
    REQUIRE(ibv_poll_cq(attributes.send_cq, 1, &completion) < 0);
  }),
            0);
}

TEST(Faults, AWedgedDeviceNeverReturns) {
  Job job(1, file(R"(, "devices": [{"device": "0.rdma_en2", "hangs": ["query_port"], "hangs_at_ms": 300}])"));
  const pid_t pid = job.start(0, [&job](int) {
    OpenDevice device("rdma_en2");
    ibv_port_attr port;
    REQUIRE(ibv_query_port(device.context, 1, &port) == 0);
    job.board->numbers[0] = 1;
    std::this_thread::sleep_for(400ms);
    ibv_query_port(device.context, 1, &port);
    job.board->numbers[0] = 2;
  });
  EXPECT_EQ(job.wait(pid, 1500ms), -1);
  EXPECT_EQ(job.board->numbers[0], 1u);
}

TEST(Faults, ACableOfFortyGigabitsSaysSo) {
  Job job(1, R"({"ranks": 2, "cables": [{"ends": ["0.a", "1.a"], "link_gbps": 40}, {"ends": ["0.b", "1.b"]}]})");
  EXPECT_EQ(job.run([](int) {
    const auto gbps = [](const char* name) {
      ibv_port_attr port;
      REQUIRE(ibv_query_port(OpenDevice(name).context, 1, &port) == 0);
      REQUIRE(port.active_speed == 8);  // 10 Gb/s a lane of 4 or 8
      return port.active_width == 2 ? 40 : port.active_width == 4 ? 80 : 0;
    };
    REQUIRE(gbps("a") == 40);
    REQUIRE(gbps("b") == 80);
  }),
            0);
}

}  // namespace
}  // namespace trunkline::test

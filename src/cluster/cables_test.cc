#include "cluster/cables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trunkline/error.h"

namespace trunkline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(auto call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "no error";
}

TEST(CableSpec, GivesEveryPairItsCables) {
  const Wiring wiring = wiring_from_spec("2:gbps=10,delay_us=5,loss=0.001,damage=1e-4,seed=7", 3);
  EXPECT_EQ(wiring.ranks, 3);
  EXPECT_EQ(wiring.seed, 7u);
  ASSERT_EQ(wiring.cables.size(), 6u);
  EXPECT_EQ(wiring.cables[0].gbps, 10);
  EXPECT_EQ(wiring.cables[5].loss, 0.001);
  const DeviceMatrix matrix = device_matrix(wiring);
  EXPECT_THAT(matrix[0][1], ElementsAre("rdma_en2", "rdma_en3"));
  EXPECT_THAT(matrix[0][2], ElementsAre("rdma_en4", "rdma_en5"));
  EXPECT_THAT(matrix[1][0], ElementsAre("rdma_en2", "rdma_en3"));
  EXPECT_THAT(matrix[2][1], ElementsAre("rdma_en4", "rdma_en5"));
  EXPECT_THAT(matrix[1][1], ElementsAre());
  EXPECT_EQ(wiring.devices.size(), 12u);
}

TEST(CableSpec, WithoutKeysHasNoLimit) {
  const Wiring wiring = wiring_from_spec("1", 2);
  ASSERT_EQ(wiring.cables.size(), 1u);
  EXPECT_FALSE(wiring.cables[0].gbps);
  EXPECT_EQ(wiring.limits, DeviceLimits());
}

TEST(CableSpec, CutsAndMendsOneCable) {
  const Wiring wiring = wiring_from_spec("2:mend=2-1.1@900,cut=1-2.1@300,cut=1-2.1@1000", 3);
  for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(wiring.cables[i].outages.empty()) << i;
  EXPECT_THAT(wiring.cables[5].outages, ElementsAre(Outage{300, 900}, Outage{.cut_ms = 1000}));
}

TEST(CableSpec, RefusesWhatItCannotRead) {
  const auto error = [](const char* spec) { return error_of([&] { wiring_from_spec(spec, 2); }); };
  EXPECT_THAT(error(""), HasSubstr("K: \"\" is not a whole number"));
  EXPECT_THAT(error("0"), HasSubstr("whole number from 1"));
  EXPECT_THAT(error("2:"), HasSubstr("nothing follows"));
  EXPECT_THAT(error("2:gbps=0"), HasSubstr("gbps: \"0\""));
  EXPECT_THAT(error("2:gbps"), HasSubstr("gbps: \"\""));
  EXPECT_THAT(error("2:loss=1.5"), HasSubstr("loss: \"1.5\" is not a number from 0 to 1"));
  EXPECT_THAT(error("2:loss=nan"), HasSubstr("loss"));
  EXPECT_THAT(error("2:speed=3"), HasSubstr("\"speed=3\" is not one of gbps"));
  EXPECT_THAT(error("2:gbps=1,"), HasSubstr("\"\" is not one of gbps"));
  EXPECT_THAT(error("2:cut=0-1.2@5"), HasSubstr("cut: \"2\" is not a whole number from 0 to 1"));
  EXPECT_THAT(error("2:cut=0-2.0@5"), HasSubstr("cut: \"2\""));
  EXPECT_THAT(error("2:cut=0-0.0@5"), HasSubstr("one rank twice"));
  EXPECT_THAT(error("2:cut=01@5"), HasSubstr("A-B.I@MS"));
  EXPECT_THAT(error("2:mend=0-1.0@5"), HasSubstr("whole already"));
  EXPECT_THAT(error("2:cut=0-1.0@5,cut=0-1.0@6"), HasSubstr("cut already"));
}

constexpr const char* kFile = R"({
  "ranks": 2, "seed": 3,
  "limits": {"queue_pairs": 4, "keep_crashed_queue_pairs": true, "message_bytes": 4096, "resolve_gids": true},
  "defaults": {"gbps": 10, "delay_us": 2, "receive_error": 0.001},
  "cables": [
    {"ends": ["0.rdma_en3", "1.rdma_en2"], "gbps": null, "cuts": [{"at_ms": 5, "mend_ms": 9}, {"at_ms": 20}]},
    {"ends": ["0.rdma_en2", "1.rdma_en3"], "link_gbps": 40}
  ],
  "devices": [
    {"device": "1.rdma_en5", "port_down": true},
    {"device": "0.rdma_en2", "gids": [{"table": ["fe80::1"]}, {"at_ms": 3000, "table": ["fe80::1", "", "::ffff:10.0.0.1"]}],
     "hangs": ["query_port"], "hangs_at_ms": 5, "errors": {"modify_qp": 22}}
  ]
})";

TEST(FabricFile, IsReadAndWritten) {
  const Wiring wiring = wiring_from_json(kFile, "w.json", 2);
  EXPECT_EQ(wiring.limits.queue_pairs, 4);
  EXPECT_TRUE(wiring.limits.keep_crashed_queue_pairs);
  EXPECT_EQ(wiring.limits.work_requests, 63);
  EXPECT_FALSE(wiring.cables[0].gbps);
  EXPECT_EQ(wiring.cables[1].gbps, 10);
  EXPECT_EQ(wiring.cables[1].link_gbps, 40);
  EXPECT_THAT(wiring.cables[0].outages, ElementsAre(Outage{5, 9}, Outage{.cut_ms = 20}));
  std::vector<std::string> order;
  for (const Device& device : wiring.devices) order.push_back(std::to_string(device.rank) + device.name);
  EXPECT_THAT(order, ElementsAre("0rdma_en2", "0rdma_en3", "1rdma_en5", "1rdma_en2", "1rdma_en3"));
  EXPECT_EQ(wiring.devices[0].gids[1].gids[2], "::ffff:10.0.0.1");
  EXPECT_EQ(wiring.devices[0].errors.at("modify_qp"), 22);
  EXPECT_THAT(device_matrix(wiring)[0][1], ElementsAre("rdma_en3", "rdma_en2"));
  EXPECT_EQ(wiring_from_json(to_json(wiring), "again"), wiring);
  const Wiring spec = wiring_from_spec("3:gbps=1.5,cut=0-1.2@7,seed=18446744073709551615", 4);
  EXPECT_EQ(wiring_from_json(to_json(spec), "again"), spec);
}

TEST(FabricFile, RefusesWhatCannotBe) {
  const auto error = [](const std::string& text) { return error_of([&] { wiring_from_json(text, "w.json", 2); }); };
  EXPECT_THAT(error("{\n\"ranks\": 2,,}"), HasSubstr("w.json:2: is not JSON"));
  EXPECT_THAT(error("[]"), HasSubstr("w.json: is array, not an object"));
  EXPECT_THAT(error(R"({"ranks": 3})"), HasSubstr("ranks: is 3, but the job has 2"));
  EXPECT_THAT(error(R"({"cabels": []})"), HasSubstr("w.json: cabels: is not a key here; there are ranks"));
  EXPECT_THAT(error(R"({"cables": [{}]})"), HasSubstr("cables[0]: ends: is missing"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a"]}]})"), HasSubstr("ends: has 1 entries"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "b"]}]})"), HasSubstr("ends[1]: is \"b\", not \"RANK.DEVICE\""));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "2.b"]}]})"), HasSubstr("there is no rank 2"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "0.b"]}]})"), HasSubstr("both are rank 0's"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "1.b"]}, {"ends": ["1.b", "0.c"]}]})"),
              HasSubstr("has a cable already"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "1.b"], "loss": "x"}]})"),
              HasSubstr("loss: is \"x\", not a number"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "1.b"], "link_gbps": 41}]})"), HasSubstr("not 40 or 80"));
  EXPECT_THAT(error(R"({"cables": [{"ends": ["0.a", "1.b"], "cuts": [{"at_ms": 5, "mend_ms": 5}]}]})"),
              HasSubstr("cuts come in order"));
  EXPECT_THAT(error(R"({"limits": {"queue_pairs": 0}})"), HasSubstr("limits: queue_pairs: is 0"));
  EXPECT_THAT(error(R"({"limits": {"mtu": 1000}})"), HasSubstr("not one of 256"));
  EXPECT_THAT(error(R"({"devices": [{"device": "0.a", "hangs": ["dance"]}]})"),
              HasSubstr("\"dance\" is not one of open_device"));
  EXPECT_THAT(error(R"({"devices": [{"device": "0.a", "gids": [{"table": ["10.0.0.1"]}]}]})"),
              HasSubstr("not an IPv6 address"));
  EXPECT_THAT(error(R"({"devices": [{"device": "0.a"}, {"device": "0.a"}]})"), HasSubstr("listed twice"));
  EXPECT_THAT(error(R"({"devices": [{"device": "0.a", "errors": {"modify_qp": 0}}]})"),
              HasSubstr("whole number from 1"));
}

}  // namespace
}  // namespace trunkline

#include "launch/fabric.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "base/file.h"

namespace trunkline {
namespace {

std::map<std::string, std::optional<std::string>> variables(const Fabric* fabric, const Settings& settings) {
  const auto list = fabric_environment(fabric, settings);
  return {list.begin(), list.end()};
}

#ifdef __linux__

TEST(Fabric, IsTwoFilesAndALibrary) {
  const Wiring wiring = wiring_from_spec("2:gbps=3", 3);
  const Fabric fabric = open_fabric(wiring);
  const auto text = [](const Fd& file) { return read_file("/proc/self/fd/" + std::to_string(file.get())); };
  EXPECT_EQ(wiring_from_json(text(fabric.state), "state"), wiring);
  EXPECT_EQ(text(fabric.matrix),
            R"([[null,["rdma_en2","rdma_en3"],["rdma_en4","rdma_en5"]],[["rdma_en2","rdma_en3"],null,)"
            R"(["rdma_en4","rdma_en5"]],[["rdma_en2","rdma_en3"],["rdma_en4","rdma_en5"],null]])"
            "\n");
  EXPECT_EQ(text(open_fabric(wiring_from_spec("1", 2)).matrix), "[[null,\"rdma_en2\"],[\"rdma_en2\",null]]\n");
}

TEST(Fabric, IsFoundThroughTheEnvironment) {
  const Fabric fabric = open_fabric(wiring_from_spec("1", 2));
  Settings settings;
  auto found = variables(&fabric, settings);
  EXPECT_EQ(found["TRUNKLINE_FABRIC_FD"], std::to_string(fabric.state.get()));
  EXPECT_EQ(found["LD_LIBRARY_PATH"], TRUNKLINE_BINARY_DIR "/fabric");
  settings.library_path = "/opt/lib";
  EXPECT_EQ(variables(&fabric, settings)["LD_LIBRARY_PATH"], TRUNKLINE_BINARY_DIR "/fabric:/opt/lib");
  found = variables(nullptr, settings);
  EXPECT_EQ(found.size(), 1u);
  EXPECT_FALSE(found.at("TRUNKLINE_FABRIC_FD").has_value());
}

#endif

}  // namespace
}  // namespace trunkline

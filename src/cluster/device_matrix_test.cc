#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cluster/cables.h"
#include "trunkline/error.h"

namespace trunkline {
namespace {

using testing::ElementsAre;

TEST(DeviceMatrixFile, HasNoNameOneOrSeveralInACell) {
  const DeviceMatrix matrix = device_matrix_from_json(R"([[null, "rdma_en2", ["rdma_en4", "rdma_en3"]],
                                                          [["rdma_en5"], null, []],
                                                          [["a", "b"], null, null]])",
                                                      "devices.json", 3);
  EXPECT_THAT(matrix[0][1], ElementsAre("rdma_en2"));
  EXPECT_THAT(matrix[0][2], ElementsAre("rdma_en4", "rdma_en3"));
  EXPECT_THAT(matrix[1], ElementsAre(ElementsAre("rdma_en5"), ElementsAre(), ElementsAre()));
  EXPECT_THAT(matrix[2][0], ElementsAre("a", "b"));
}

TEST(DeviceMatrixFile, IsRefusedWithItsPlaceIfItCannotBe) {
  const std::pair<const char*, const char*> cases[] = {
      {"[[null, \"a\"],\n [\"a\" null]]", "devices.json:2: is not JSON"},
      {"", "devices.json:1: is not JSON"},
      {"{}", "devices.json: is object, not a list of rows"},
      {R"([[null]])", "devices.json: has 1 rows, and the job has 2 ranks"},
      {R"([[null, "a"], "a"])", "devices.json: row 1: is string, not a list of cells"},
      {R"([[null, "a"], ["a"]])", "devices.json: row 1: has 1 cells; it needs one for each of 2 ranks"},
      {R"([[null, 7], ["a", null]])", "devices.json: row 0, column 1: is 7, not a device's name"},
      {R"([[null, ""], ["a", null]])", "devices.json: row 0, column 1: is \"\", not a device's name"},
      {R"([[null, ["a", null]], ["a", null]])", "devices.json: row 0, column 1, entry 1: is null, not"},
      {R"([["a", "b"], ["a", null]])", "devices.json: row 0, column 0: is a, but a rank has no cable to itself"},
      {R"([[null, ["a", "b"]], ["a", null]])",
       "devices.json: row 0, column 1: names 2 devices, and row 1, column 0 names 1"},
      {R"([[null, ["a", "a"]], [["a", "b"], null]])", "devices.json: row 0, column 1: names a again"},
  };
  for (const auto& [text, message] : cases) {
    try {
      device_matrix_from_json(text, "devices.json", 2);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_THAT(error.what(), testing::HasSubstr(message));
    }
  }
}

}  // namespace
}  // namespace trunkline

#include "model/json_edit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace trunkline {
namespace {

TEST(SetConfigDtype, ChangesTheValueAlone) {
  EXPECT_EQ(set_config_dtype(R"({ "a" : 1e-06,"dtype":"bfloat16" , "b":[1, 2]})", "float32"),
            R"({ "a" : 1e-06,"dtype":"float32" , "b":[1, 2]})");
  EXPECT_EQ(set_config_dtype("{\n  \"torch_dtype\": null\n}\n", "float16"), "{\n  \"torch_dtype\": \"float16\"\n}\n");
  EXPECT_EQ(set_config_dtype(R"({"dtype":"x","torch_dtype":"y"})", "z"), R"({"dtype":"z","torch_dtype":"z"})");
}

TEST(SetConfigDtype, LooksAtTheTopAlone) {
  EXPECT_EQ(set_config_dtype(R"({"n":{"dtype":"x","s":"}\"{"},"l":[{"dtype":"y"}],"dtype":"v"})", "w"),
            R"({"n":{"dtype":"x","s":"}\"{"},"l":[{"dtype":"y"}],"dtype":"w"})");
  EXPECT_EQ(set_config_dtype(R"({"a":"\"dtype\": \"x\"","dtype":{"k":[1]}})", "w"),
            R"({"a":"\"dtype\": \"x\"","dtype":"w"})");
}

TEST(SetConfigDtype, PutsTheKeyWhereThereIsNone) {
  for (const char* text : {"{}", "{ \n}", R"({"a": 1})", "{\n  \"a\": {\"dtype\": \"x\"}\n}\n"}) {
    nlohmann::json expected = nlohmann::json::parse(text);
    expected["dtype"] = "float32";
    EXPECT_EQ(nlohmann::json::parse(set_config_dtype(text, "float32")), expected) << text;
  }
}

}  // namespace
}  // namespace trunkline

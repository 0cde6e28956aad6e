#include "base/json_reason.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace trunkline {
namespace {

using Json = nlohmann::json;

template <typename Use>
std::string reason(Use use) {
  try {
    use();
  } catch (const Json::exception& error) {
    return json_reason(error.what());
  }
  return "none";
}

std::string parsing(const std::string& text) {
  return reason([&] { const Json parsed = Json::parse(text); });
}

TEST(JsonReason, SaysWhereATextIsNoJson) {
  EXPECT_EQ(parsing("{\"a\": 1,\n \"b\": "), "line 2, column 7: unexpected end of input");
  EXPECT_EQ(parsing("[1, nul]"), "line 1, column 8: invalid literal");
  EXPECT_EQ(parsing(""), "line 1, column 1: unexpected end of input");
}

TEST(JsonReason, QuotesNothingOfTheText) {
  EXPECT_EQ(parsing("{\"secret\" \"word\"}").find("secret"), std::string::npos);
  EXPECT_EQ(parsing("{\"secret\" \"word\"}").find("word"), std::string::npos);
}

TEST(JsonReason, SaysWhatAValueLacks) {
  EXPECT_EQ(reason([] { (void)Json::object().at("bytes"); }), "key 'bytes' not found");
  EXPECT_EQ(reason([] { (void)Json("x").get<int>(); }), "type must be number, but is string");
}

}  // namespace
}  // namespace trunkline

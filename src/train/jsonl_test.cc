#include "train/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trunkline/error.h"

namespace trunkline {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

std::string faults_of(const std::string& bytes, const RowFields& fields = {}) {
  try {
    check_rows("a.jsonl", bytes, fields);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::input);
    return error.what();
  }
  return "none";
}

std::string chat(const std::string& message) {
  return R"({"messages": [{"role": "user", "content": "secret"}, )" + message + "]}";
}

TEST(Jsonl, TakesEveryKindOfRow) {
  const std::string bytes =
      R"({"text": "a", "other": [1, {"x": null}]})"
      "\n"
      R"({"prompt": "a", "completion": "", "tools": null})"
      "\n"
      R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]},
       {"role": "assistant", "content": null, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]},
       {"role": "tool", "content": "t"}, {"role": "assistant", "tool_calls": [{"name": "f", "arguments": "{}"}]},
       {"role": "assistant", "content": "x", "reasoning_content": null, "tool_calls": null}], "tools": [{"type": "function"}]})";
  std::string lines = bytes;
  lines.erase(std::remove(lines.begin() + static_cast<long>(lines.find("messages")), lines.end(), '\n'), lines.end());
  const DataRows rows = check_rows("a.jsonl", lines, {});
  ASSERT_EQ(rows.rows.size(), 3u);
  EXPECT_EQ(rows.rows[0].kind, RowKind::text);
  EXPECT_EQ(rows.rows[1].kind, RowKind::completion);
  EXPECT_EQ(rows.rows[2].kind, RowKind::chat);
  // Prompt and completion go first, then messages, as in mlx_lm.
  EXPECT_EQ(check_rows("a", R"({"text": "a", "prompt": "a", "completion": "b", "messages": 1})", {}).rows[0].kind,
            RowKind::completion);
  EXPECT_EQ(check_rows("a", R"({"prompt": 3, "text": "a"})", {}).rows[0].kind, RowKind::text);
  EXPECT_EQ(check_rows("a", R"({"q": "a", "a": "b"})", {.prompt = "q", .completion = "a"}).rows[0].kind,
            RowKind::completion);
}

TEST(Jsonl, TakesEveryKindOfLineEnd) {
  const DataRows rows =
      check_rows("a", "\xef\xbb\xbf{\"text\": \"a\"}\r\n\n  \t\r\n\r\n{\"text\": \"b\"}\n{\"text\": \"c\"}", {});
  ASSERT_EQ(rows.rows.size(), 3u);
  EXPECT_EQ(rows.blank, 3);
  EXPECT_EQ(rows.rows[0].line, 1);
  EXPECT_EQ(rows.rows[1].line, 5);
  EXPECT_EQ(rows.rows[2].line, 6);
  EXPECT_EQ(rows.rows[2].json, "{\"text\": \"c\"}");
}

TEST(Jsonl, NamesAFileWithoutRows) {
  EXPECT_EQ(faults_of(""), "a.jsonl: is empty; it needs a JSON object a line");
  EXPECT_EQ(faults_of("\n \n"), "a.jsonl: has blank lines only; it needs a JSON object a line");
  EXPECT_THAT(faults_of("\xef\xbb\xbf"), HasSubstr("a.jsonl: has blank lines only"));
  EXPECT_THAT(faults_of(std::string("\xff\xfe{\0", 4)), HasSubstr("UTF-16"));
}

TEST(Jsonl, APointerToAFileIsNotTheFile) {
  EXPECT_THAT(faults_of("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              HasSubstr("is a Git LFS pointer"));
}

TEST(Jsonl, TellsLineAndColumnOfWhatIsNotJson) {
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_EQ(faults_of(good + "\n{\"text\": \"日本\", secret}\n"),
            "a.jsonl:3:16: row: is not valid JSON: invalid literal");
  EXPECT_THAT(faults_of(good + "{\"text\": \"secret"), HasSubstr("a.jsonl:2:16: row: is not valid JSON"));
  EXPECT_THAT(faults_of(good + "{\"text\": \"secret\"} {}"), HasSubstr("a.jsonl:2:20: row: is not valid JSON"));
  EXPECT_THAT(faults_of("{\"text\": \"\xc3\x28\"}"),
              HasSubstr("a.jsonl:1:12: row: is not valid JSON: invalid string: ill-formed UTF-8 byte"));
  EXPECT_THAT(faults_of(R"({"text": "\ud800"})"),
              HasSubstr("a.jsonl:1:17: row: is not valid JSON: invalid string: surrogate"));
  EXPECT_EQ(faults_of(std::string("{\"text\": \"a\"}\0x", 15)), "a.jsonl:1:14: row: has a NUL byte");
  EXPECT_THAT(faults_of("{\"text\": \"tab\there\"}"), HasSubstr("control character"));
  EXPECT_THAT(faults_of("{\"text\": NaN}"), HasSubstr("a.jsonl:1:"));
  EXPECT_EQ(faults_of("{\"text\": \"a\", \"n\": 1e999}"), "a.jsonl:1: row: has a number that is too large");
}

TEST(Jsonl, TellsTheFieldThatIsWrong) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {R"([{"text": "secret"}])", "row: is a list, not an object"},
      {R"("secret")", "row: is a string, not an object"},
      {"3", "row: is a number, not an object"},
      {R"({"txt": "secret"})", "row: has none of text, prompt with completion, and messages"},
      {R"({"text": null})", "text: is null, not a string"},
      {R"({"text": ["secret"]})", "text: is a list, not a string"},
      {R"({"prompt": "secret"})", "completion: is missing"},
      {R"({"completion": "secret"})", "prompt: is missing"},
      {R"({"prompt": "secret", "completion": 3})", "completion: is a number, not a string"},
      {R"({"prompt": null, "completion": "secret"})", "prompt: is null, not a string"},
      {R"({"text": "secret", "tools": {"secret": 1}})", "tools: is an object, not a list"},
      {R"({"text": "secret", "tools": ["secret"]})", "tools[0]: is a string, not an object"},
      {R"({"messages": []})", "messages: is empty"},
      {R"({"messages": null})", "messages: is null, not a list"},
      {R"({"messages": {"role": "user", "content": "secret"}})", "messages: is an object, not a list"},
      {chat(R"("secret")"), "messages[1]: is a string, not an object"},
      {chat(R"({"content": "secret"})"), "messages[1].role: is missing"},
      {chat(R"({"role": 1, "content": "secret"})"), "messages[1].role: is a number, not a string"},
      {chat(R"({"role": "secret", "content": "secret"})"),
       "messages[1].role: is not one of system, developer, user, assistant, tool, function, ipython"},
      {chat(R"({"role": "assistant"})"), "messages[1].content: is missing"},
      {chat(R"({"role": "assistant", "content": null})"), "messages[1].content: is null"},
      {chat(R"({"role": "assistant", "content": null, "tool_calls": []})"), "messages[1].content: is null"},
      {chat(R"({"role": "assistant", "content": {"secret": 1}})"),
       "messages[1].content: is an object, not a string or a list of parts"},
      {chat(R"({"role": "assistant", "content": ["secret"]})"), "messages[1].content[0]: is a string, not an object"},
      {chat(R"({"role": "assistant", "content": [{"text": "secret"}]})"), "messages[1].content[0].type: is missing"},
      {chat(R"({"role": "assistant", "content": [{"type": "image"}]})"),
       "messages[1].content[0].type: only parts of type text can be used"},
      {chat(R"({"role": "assistant", "content": [{"type": "text"}]})"), "messages[1].content[0].text: is missing"},
      {chat(R"({"role": "user", "content": "secret", "tool_calls": [{}]})"),
       "messages[1].tool_calls: only an assistant's message may have them"},
      {chat(R"({"role": "assistant", "tool_calls": "secret"})"), "messages[1].tool_calls: is a string, not a list"},
      {chat(R"({"role": "assistant", "tool_calls": [1]})"), "messages[1].tool_calls[0]: is a number, not an object"},
      {chat(R"({"role": "assistant", "tool_calls": [{"function": "secret"}]})"),
       "messages[1].tool_calls[0].function: is a string, not an object"},
      {chat(R"({"role": "assistant", "tool_calls": [{"function": {"arguments": {}}}]})"),
       "messages[1].tool_calls[0].function.name: is missing"},
      {chat(R"({"role": "assistant", "tool_calls": [{"name": "f", "arguments": 3}]})"),
       "messages[1].tool_calls[0].arguments: is a number, not an object or a string"},
      {chat(R"({"role": "assistant", "content": "secret", "reasoning_content": 3})"),
       "messages[1].reasoning_content: is a number, not a string"},
  };
  for (const auto& [row, fault] : cases) {
    EXPECT_EQ(faults_of("{\"text\": \"fine\"}\n" + row), "a.jsonl:2: " + fault) << row;
  }
}

TEST(Jsonl, ListsTheFirstFaultsAndCountsTheOthers) {
  std::string bytes;
  for (int i = 0; i < 50; ++i) bytes += "{\"text\": \"fine\"}\n{\"secret\": 1}\n";
  const std::string text = faults_of(bytes);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 10);
  EXPECT_THAT(text, HasSubstr("a.jsonl:2: row"));
  EXPECT_THAT(text, HasSubstr("a.jsonl:20: row"));
  EXPECT_THAT(text, EndsWith("\na.jsonl: and 40 more faulty rows"));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

TEST(Jsonl, TakesLongLines) {
  const std::string text(5 << 20, 'x');
  EXPECT_EQ(check_rows("a", "{\"text\": \"" + text + "\"}\n", {}).rows.size(), 1u);
  const std::string deep = "{\"text\": \"a\", \"x\": " + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_EQ(check_rows("a", deep, {}).rows.size(), 1u);
}

}  // namespace
}  // namespace trunkline

#include "train/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/fail.h"
#include "base/file.h"
#include "model/text_fixture_test.h"
#include "train/announcement.h"

namespace trunkline {
namespace {

using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::Not;

// The environment is read once: the cache of every test here lies in one folder, empty at each test's begin.
const std::filesystem::path kCacheHome = [] {
  auto path = std::filesystem::temp_directory_path() / fmt::format("trunkline-dataset-test-{}", ::getpid());
  ::setenv("XDG_CACHE_HOME", path.c_str(), 1);
  return path;
}();

constexpr int64_t kVocabulary = 1000;

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest() { std::filesystem::create_directories(kCacheHome); }
  ~DatasetTest() override { std::filesystem::remove_all(kCacheHome); }

  std::filesystem::path data(const std::string& bytes) {
    write_file(folder_ / "train.jsonl", bytes);
    return folder_ / "train.jsonl";
  }
  Dataset open(const std::string& bytes, const DataOptions& options = {}, int64_t vocab = kVocabulary) {
    return Dataset::open(data(bytes), text_, options, vocab);
  }
  std::string error_of(const std::string& bytes, const DataOptions& options = {}, int64_t vocab = kVocabulary) {
    try {
      open(bytes, options, vocab);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      EXPECT_FALSE(std::filesystem::exists(cache()));  // nothing was made
      return error.what();
    }
    return "none";
  }
  static std::filesystem::path cache() { return kCacheHome / "trunkline"; }
  static std::vector<std::filesystem::path> caches() {
    std::vector<std::filesystem::path> result;
    for (const auto& file : std::filesystem::directory_iterator(cache())) result.push_back(file.path());
    return result;
  }

  TestFolder folder_;
  TestModel model_{template_source("chatml")};
  Text text_{model_.path()};
};

const std::string kChat =
    R"({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes."}]})";
const std::string kCompletion = R"({"prompt": "Hello", "completion": "No."})";
const std::string kText = R"({"text": "Hello there"})";

TEST_F(DatasetTest, HoldsRowsOfEveryKind) {
  const Dataset set = open(kText + "\n\n" + kChat + "\n" + kCompletion + "\n");
  ASSERT_EQ(set.rows(), 3);
  const auto direct = text_.tokenize({kText, kChat, kCompletion}, {}, TargetTurns::all_tokens);
  for (int64_t i = 0; i < 3; ++i) {
    const TokenizedRow& row = direct[static_cast<size_t>(i)].row;
    EXPECT_THAT(set.row(i).ids, ElementsAreArray(row.ids));
    EXPECT_THAT(set.row(i).targets, ElementsAreArray(row.targets));
    EXPECT_EQ(set.row(i).target_count, static_cast<int64_t>(row.ids.size()) - 1);
    EXPECT_EQ(set.length(i), static_cast<int64_t>(row.ids.size()));
  }
  const DataSummary& summary = set.summary();
  EXPECT_EQ(summary.file, (folder_ / "train.jsonl").string());
  EXPECT_EQ(summary.rows, 3);
  EXPECT_EQ(summary.tokens, set.length(0) + set.length(1) + set.length(2));
  EXPECT_EQ(summary.targets, summary.tokens - 3);
  EXPECT_EQ(summary.blank, 1);
  EXPECT_EQ(summary.text, 1);
  EXPECT_EQ(summary.completion, 1);
  EXPECT_EQ(summary.chat, 1);
  EXPECT_EQ(summary.truncated + summary.skipped, 0);
  EXPECT_THROW(set.row(3), Error);
  EXPECT_THROW(set.row(-1), Error);
}

// As many targets as the answer and its end have tokens, none for what a batch pads with.
TEST_F(DatasetTest, CountsTargetsOfTheRowAlone) {
  const Dataset set = open(kCompletion, {.targets = TargetTurns::all_assistant});
  const RowView row = set.row(0);
  EXPECT_EQ(row.target_count, std::count(row.targets.begin(), row.targets.end(), 1));
  std::vector<int32_t> targets;
  for (size_t i = 0; i < row.ids.size(); ++i) {
    if (row.targets[i] != 0) targets.push_back(row.ids[i]);
  }
  EXPECT_EQ(targets, text_.encode("No.<|im_end|>", false));
  EXPECT_EQ(set.summary().targets, row.target_count);
}

TEST_F(DatasetTest, CutsLongRowsAndSkipsThoseWithoutATarget) {
  const auto prompt_of = [](int words) {
    std::string prompt;
    for (int i = 0; i < words; ++i) prompt += " hello";
    return R"({"prompt": ")" + prompt + R"(", "completion": "yes no yes no"})";
  };
  const DataOptions wide{.targets = TargetTurns::all_assistant};
  const int64_t length = open(prompt_of(10), wide).length(0), answer = open(prompt_of(10), wide).row(0).target_count;

  DataOptions options = wide;
  options.max_seq_length = length - 2;
  const Dataset set = open(prompt_of(10) + "\n" + prompt_of(70) + "\n" + prompt_of(1) + "\n" + kCompletion, options);
  EXPECT_EQ(set.rows(), 3);
  EXPECT_EQ(set.summary().truncated, 1);
  EXPECT_EQ(set.summary().skipped, 1);
  EXPECT_EQ(set.summary().completion, 4);
  EXPECT_EQ(set.length(0), length - 2);
  EXPECT_EQ(set.row(0).target_count, answer - 1);  // the last token of the rendering is no target
  EXPECT_EQ(set.row(1).target_count, answer);

  std::filesystem::remove_all(cache());
  options.max_seq_length = 5;
  EXPECT_THAT(error_of(prompt_of(70), options), HasSubstr("none of its 1 rows has a target within the first 5 tokens"));
  options.max_seq_length = 1;
  EXPECT_THAT(error_of(prompt_of(70), options), HasSubstr("max_seq_length: is 1"));
}

TEST_F(DatasetTest, RowsWithoutAnyTargetAreCalledSo) {
  const std::string silent = R"({"messages": [{"role": "user", "content": "Hello"}]})";
  const DataOptions options{.max_seq_length = 256, .targets = TargetTurns::all_assistant};
  EXPECT_THAT(error_of(silent, options),
              HasSubstr("none of its 1 rows has a turn of the assistant, which alone counts with mask_prompt"));
  std::filesystem::remove_all(cache());
  for (int time = 0; time < 2; ++time) {  // made, and from the cache
    const Dataset set = open(silent + "\n" + kChat, options);
    EXPECT_EQ(set.summary().skipped, 1);
    EXPECT_EQ(set.summary().untargeted, 1);
    EXPECT_THAT(describe(Sequences(open(silent + "\n" + kChat, options))), HasSubstr("1 skipped (no target at all)"));
  }
}

TEST_F(DatasetTest, TellsEveryFaultBeforeAnythingIsMade) {
  EXPECT_EQ(error_of(kText + "\n{\"text\": 3}\n" + kText),
            (folder_ / "train.jsonl").string() + ":2: text: is a number, not a string");
  EXPECT_THAT(error_of(""), HasSubstr("train.jsonl: is empty"));
  EXPECT_THAT(error_of(kChat + "\n" + kText, {.targets = TargetTurns::all_assistant}),
              HasSubstr("train.jsonl:2: text: a text row has no prompt to mask"));
  EXPECT_THAT(error_of(kText, {}, 300), HasSubstr("but the model's embedding has 300 rows"));
  const std::string refused =
      error_of(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "secret"}]}]})");
  EXPECT_THAT(refused, HasSubstr("train.jsonl:1: messages: the chat template fails"));
  EXPECT_THAT(refused, Not(HasSubstr("secret")));
  EXPECT_THROW(Dataset::open(folder_ / "nothing.jsonl", text_, {}, kVocabulary), Error);
  EXPECT_THROW(Dataset::open(folder_.path(), text_, {}, kVocabulary), Error);
}

TEST_F(DatasetTest, OneBadRowOfManyIsFound) {
  std::string bytes;
  for (int i = 1; i <= 50'000; ++i) bytes += i == 40'000 ? "{\"text\": null}\n" : kText + "\n";
  EXPECT_EQ(error_of(bytes), (folder_ / "train.jsonl").string() + ":40000: text: is null, not a string");
}

TEST_F(DatasetTest, IsMadeOnceForTheSameSources) {
  const Dataset first = open(kText + "\n" + kChat);
  ASSERT_EQ(caches().size(), 1u);
  const auto written = std::filesystem::last_write_time(caches()[0]);
  const Dataset again = open(kText + "\n" + kChat);
  EXPECT_EQ(std::filesystem::last_write_time(caches()[0]), written);
  EXPECT_EQ(again.checksum(), first.checksum());
  EXPECT_EQ(again.summary().targets, first.summary().targets);
  EXPECT_THAT(again.row(1).ids, ElementsAreArray(first.row(1).ids));
  struct stat status {};
  ASSERT_EQ(::stat(caches()[0].c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat(cache().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);

  // Anything else that rows are made of makes another.
  EXPECT_NE(open(kText + "\n" + kCompletion).checksum(), first.checksum());
  open(kText + "\n" + kChat, {.max_seq_length = 100});
  open(kChat, {.targets = TargetTurns::all_assistant});
  open(kChat, {.targets = TargetTurns::last_assistant});
  open(kText + "\n" + kChat, {}, kVocabulary + 1);
  model_.config["chat_template"] = template_source("joined");
  model_.write();
  text_ = Text(model_.path());
  EXPECT_NE(open(kText + "\n" + kChat).checksum(), first.checksum());
  EXPECT_EQ(caches().size(), 7u);
}

TEST_F(DatasetTest, TellsHowFarItIs) {
  std::string bytes;
  for (int i = 0; i < 1200; ++i) bytes += kText + "\n";
  std::vector<int64_t> told;
  const DataOptions options{.progress = [&](int64_t done, int64_t rows) {
    EXPECT_EQ(rows, 1200);
    told.push_back(done);
  }};
  open(bytes, options);
  EXPECT_EQ(told, (std::vector<int64_t>{512, 1024, 1200}));
  open(bytes, options);
  EXPECT_EQ(told.size(), 3u);
}

TEST_F(DatasetTest, MakesADamagedCacheAnew) {
  const uint32_t checksum = open(kText + "\n" + kChat).checksum();
  const auto path = caches().at(0);
  const std::string whole = read_file(path);
  std::vector<std::string> damaged = {
      "", "x", whole.substr(0, 50), whole.substr(0, whole.size() - 1), whole + "x", std::string(whole.size(), '\0')};
  for (size_t i = 0; i < whole.size(); i += 41) {
    damaged.push_back(whole);
    damaged.back()[i] = static_cast<char>(damaged.back()[i] ^ 0x10);
  }
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  for (const std::string& bytes : damaged) {
    write_file(path, bytes);
    EXPECT_EQ(open(kText + "\n" + kChat).checksum(), checksum);
    EXPECT_EQ(read_file(path), whole);
  }
  const std::string told = ::testing::internal::GetCapturedStderr() + ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(told, HasSubstr("is made anew"));
}

TEST_F(DatasetTest, GoesOnWithoutACache) {
  const uint32_t checksum = open(kText).checksum();
  std::filesystem::remove_all(cache());
  write_file(cache(), "a file where the directory should be");
  ::testing::internal::CaptureStderr();
  ::testing::internal::CaptureStdout();
  const Dataset made = open(kText);
  const Dataset moved = [&] {
    Dataset set = open(kText);
    Dataset other = std::move(set);
    return other;
  }();
  const std::string told = ::testing::internal::GetCapturedStderr() + ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(told, HasSubstr("cannot be cached: cannot make " + cache().string()));
  EXPECT_EQ(made.checksum(), checksum);
  EXPECT_EQ(text_.decode({moved.row(0).ids.begin(), moved.row(0).ids.end()}), "Hello there");
}

TEST_F(DatasetTest, WritersAtOnceAreHarmless) {
  std::string bytes;
  for (int i = 0; i < 200; ++i)
    bytes += R"({"prompt": "Hello )" + std::to_string(i) +
             R"(", "completion": "No."})"
             "\n";
  const auto file = data(bytes);
  std::vector<uint32_t> checksums(4);
  std::vector<std::thread> ranks;
  for (uint32_t& checksum : checksums) {
    ranks.emplace_back([&] {
      Text text(model_.path());
      for (int i = 0; i < 5; ++i) {
        const Dataset set = Dataset::open(file, text, {}, kVocabulary);
        checksum = set.rows() == 200 ? set.checksum() : 0;
        std::error_code ignored;
        std::filesystem::remove_all(cache(), ignored);
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const uint32_t checksum : checksums) EXPECT_EQ(checksum, checksums[0]);
  EXPECT_NE(checksums[0], 0u);
}

}  // namespace
}  // namespace trunkline

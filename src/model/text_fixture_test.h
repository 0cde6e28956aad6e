// For tests of text and data: small model directories made of tests/text/.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {

inline std::filesystem::path text_inputs() { return std::filesystem::path(TRUNKLINE_SOURCE_DIR) / "tests" / "text"; }

inline std::string template_source(const std::string& name) {
  return read_file(text_inputs() / "templates" / (name + ".jinja"));
}

// A directory that goes when the test ends.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    path_ = std::filesystem::temp_directory_path() /
            fmt::format("trunkline-{}-{}-{}-{}", info->test_suite_name(), info->name(), ::getpid(), count_++);
    std::filesystem::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  static inline int count_ = 0;
  std::filesystem::path path_;
};

// A model's files but for its weights. The tokenizer is tests/text/tokenizers/NAME.json; its end of turn <|im_end|>.
class TestModel {
 public:
  explicit TestModel(const std::string& chat_template, const std::string& tokenizer = "byte_level") {
    std::filesystem::copy_file(text_inputs() / "tokenizers" / (tokenizer + ".json"), folder_ / "tokenizer.json");
    config["chat_template"] = chat_template;
    write();
  }
  // Once `config` or `generation` has been changed.
  void write() const {
    write_file(folder_ / "tokenizer_config.json", config.dump());
    write_file(folder_ / "generation_config.json", generation.dump());
  }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path operator/(const std::string& name) const { return folder_ / name; }

  nlohmann::ordered_json config = {{"bos_token", "<|begin_of_text|>"},
                                   {"eos_token", "<|im_end|>"},
                                   {"pad_token", "<|endoftext|>"},
                                   {"image_token", "<s>"}};
  nlohmann::ordered_json generation = nlohmann::ordered_json::object();

 private:
  TestFolder folder_;
};

}  // namespace trunkline

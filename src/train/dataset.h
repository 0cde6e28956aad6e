// Datasets: JSONL files of text, prompt / completion or messages rows, checked whole, tokenized once into a
// memory-mapped cache.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/text.h"

namespace trunkline {

struct DataOptions {
  int64_t max_seq_length = 2048;
  TargetTurns targets = TargetTurns::all_tokens;
  // Names of the fields, as in mlx_lm's YAML.
  std::string text_feature = "text", prompt_feature = "prompt", completion_feature = "completion",
              chat_feature = "messages";
};

// What happened to a file's rows.
struct DataSummary {
  std::string file;
  int64_t rows = 0;    // rows kept
  int64_t tokens = 0;  // in the rows kept
  int64_t targets = 0;
  int64_t truncated = 0;                       // longer than max_seq_length, cut at the end
  int64_t skipped = 0;                         // no target within max_seq_length
  int64_t blank = 0;                           // blank lines
  int64_t text = 0, completion = 0, chat = 0;  // rows a kind
};

struct RowView {
  std::span<const int32_t> ids;
  std::span<const uint8_t> targets;
  int64_t target_count = 0;
};

// Tokenized rows of one file, mapped from the cache; immutable.
class Dataset {
 public:
  // Opens the cache for `jsonl`, making it first if there is none for these sources: the file, the model's tokenizer
  // and template, the options. The whole file is checked before anything is made; a fault throws Error(input) with
  // "FILE:LINE: field: what is wrong", never the row's text. `vocab`: rows of the model's embedding; an id past it is
  // an error.
  static Dataset open(const std::filesystem::path& jsonl, Text& text, const DataOptions& options, int64_t vocab);

  int64_t rows() const { return static_cast<int64_t>(offsets_.size()) - 1; }
  RowView row(int64_t index) const;
  int64_t length(int64_t index) const { return static_cast<int64_t>(row(index).ids.size()); }
  const DataSummary& summary() const { return summary_; }
  // Hash of the rows as tokenized: what ranks compare.
  uint32_t checksum() const { return checksum_; }

 private:
  std::unique_ptr<MappedFile> file_;
  std::span<const int64_t> offsets_;  // row i is tokens offsets_[i] .. offsets_[i + 1]
  std::span<const int64_t> target_counts_;
  std::span<const int32_t> ids_;
  std::span<const uint8_t> targets_;
  DataSummary summary_;
  uint32_t checksum_ = 0;
};

}  // namespace trunkline

// Datasets: JSONL files of text, prompt / completion or messages rows, checked whole, tokenized once into a
// memory-mapped cache. docs/data.md says what users see of it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>

#include "model/text.h"
#include "train/row_cache.h"

namespace trunkline {

struct DataOptions {
  int64_t max_seq_length = 2048;
  TargetTurns targets = TargetTurns::all_tokens;
  // Names of the fields, as in mlx_lm's YAML.
  std::string text_feature = "text", prompt_feature = "prompt", completion_feature = "completion",
              chat_feature = "messages";
  // Told after every batch of rows that is tokenized: how many of how many. Not told when there is a cache.
  std::function<void(int64_t done, int64_t rows)> progress = nullptr;
};

// What happened to a file's rows.
struct DataSummary {
  std::string file;
  int64_t rows = 0;    // rows kept
  int64_t tokens = 0;  // in the rows kept
  int64_t targets = 0;
  int64_t truncated = 0;                       // rows kept that were longer than max_seq_length, cut at the end
  int64_t skipped = 0;                         // rows without a target within max_seq_length,
  int64_t untargeted = 0;                      // of them those without any
  int64_t blank = 0;                           // blank lines
  int64_t text = 0, completion = 0, chat = 0;  // rows a kind, those skipped included
};

struct RowView {
  std::span<const int32_t> ids;
  std::span<const uint8_t> targets;
  int64_t target_count = 0;
  int64_t number = 0;  // of the row in its file's dataset
};

// Tokenized rows of one file, mapped from the cache; immutable.
class Dataset {
 public:
  // Opens the cache for `jsonl`, making it first if there is none for these sources: the file, the model's tokenizer
  // and template, the options. The whole file is checked before anything is made; a fault throws Error(input) with
  // "FILE:LINE: field: what is wrong", never the row's text. `vocab`: rows of the model's embedding; an id past it is
  // an error. Several processes may do this at once; it is less work if one of them goes first.
  static Dataset open(const std::filesystem::path& jsonl, Text& text, const DataOptions& options, int64_t vocab);

  int64_t rows() const { return rows_.counts.rows; }
  RowView row(int64_t index) const;
  int64_t length(int64_t index) const;
  const DataSummary& summary() const { return summary_; }
  // Hash of the rows as tokenized: what ranks compare.
  uint32_t checksum() const { return rows_.checksum; }

 private:
  CachedRows rows_;
  DataSummary summary_;
};

}  // namespace trunkline

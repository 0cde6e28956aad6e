// The cache of tokenized rows: one file for a data file, a model's tokenizer and a set of options, named by the digest
// of them all. docs/data.md has the format. It holds what the data says, so only its owner may read it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/digest.h"
#include "base/file.h"

namespace trunkline {

// Counts of DataSummary, as the cache keeps them.
struct RowCounts {
  int64_t rows = 0, tokens = 0, targets = 0, truncated = 0, skipped = 0, blank = 0, text = 0, completion = 0, chat = 0,
          untargeted = 0;
};

// Rows end to end: row i is tokens offsets[i] .. offsets[i + 1].
struct RowArrays {
  std::vector<int64_t> offsets = {0};
  std::vector<int64_t> target_counts;
  std::vector<int32_t> ids;
  std::vector<uint8_t> targets;
  RowCounts counts;
};

// A cache's contents, wherever they lie.
class CachedRows {
 public:
  RowCounts counts;
  std::span<const int64_t> offsets, target_counts;
  std::span<const int32_t> ids;
  std::span<const uint8_t> targets;
  uint32_t checksum = 0;  // of the rows, the same wherever they were made

  // The rows under `key`; none if there is no such cache, or a damaged one (which is told).
  static std::optional<CachedRows> find(const Digest& key);
  // Keeps `rows` under `key`, as one step that readers and other writers see whole or not at all. Where the cache
  // cannot be written, that is told, and the rows stay in memory.
  static CachedRows keep(const Digest& key, const RowArrays& rows);

 private:
  // Throws Error(input) saying what is wrong with the bytes.
  void read(std::string_view bytes, const Digest& key);

  std::unique_ptr<MappedFile> file_;
  std::unique_ptr<std::string> memory_;
};

}  // namespace trunkline

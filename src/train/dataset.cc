#include "train/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.h"
#include "base/file.h"
#include "train/jsonl.h"

namespace trunkline {
namespace {

// A part of the key: raised when the same sources come to make other rows.
constexpr int kFormat = 2;

// Rows go to the tokenizer in batches of about this many, or bytes.
constexpr size_t kBatchRows = 512;
constexpr size_t kBatchBytes = size_t{1} << 20;

Digest key_of(std::string_view data, const Text& text, const DataOptions& options, int64_t vocab) {
  const nlohmann::json parts = {kFormat,
                                to_hex(digest_of(data)),
                                text.fingerprint(),
                                static_cast<int>(options.targets),
                                options.max_seq_length,
                                vocab,
                                options.text_feature,
                                options.prompt_feature,
                                options.completion_feature,
                                options.chat_feature};
  return digest_of(parts.dump());
}

// Adds a tokenized row, cut to size, or counts it as skipped.
void add_row(TokenizedRow row, int64_t max_length, RowArrays& result) {
  const bool untargeted = std::count(row.targets.begin(), row.targets.end(), 1) == 0;
  const bool truncated = static_cast<int64_t>(row.ids.size()) > max_length;
  if (truncated) {
    row.ids.resize(static_cast<size_t>(max_length));
    row.targets.resize(static_cast<size_t>(max_length));
  }
  const int64_t targets = std::count(row.targets.begin(), row.targets.end(), 1);
  if (targets == 0) {
    ++result.counts.skipped;
    result.counts.untargeted += untargeted ? 1 : 0;
    return;
  }
  result.ids.insert(result.ids.end(), row.ids.begin(), row.ids.end());
  result.targets.insert(result.targets.end(), row.targets.begin(), row.targets.end());
  result.offsets.push_back(static_cast<int64_t>(result.ids.size()));
  result.target_counts.push_back(targets);
  ++result.counts.rows;
  result.counts.targets += targets;
  result.counts.truncated += truncated ? 1 : 0;
}

RowArrays tokenize(const std::string& file, const DataRows& data, const RowFields& fields, Text& text,
                   const DataOptions& options, int64_t vocab) {
  RowArrays result;
  Faults faults(file);
  for (size_t begin = 0; begin < data.rows.size();) {
    std::vector<std::string_view> batch;
    for (size_t bytes = 0;
         begin + batch.size() < data.rows.size() && batch.size() < kBatchRows && bytes < kBatchBytes;) {
      batch.push_back(data.rows[begin + batch.size()].json);
      bytes += batch.back().size();
    }
    std::vector<RowResult> rows = text.tokenize(batch, fields, options.targets);
    for (size_t i = 0; i < rows.size(); ++i) {
      const int64_t line = data.rows[begin + i].line;
      const std::vector<int32_t>& ids = rows[i].row.ids;
      const auto largest = std::max_element(ids.begin(), ids.end());
      if (!rows[i].error.empty()) {
        faults.add(line, rows[i].error);
      } else if (largest != ids.end() && *largest >= vocab) {
        faults.add(line, fmt::format("row: has token {}, but the model's embedding has {} rows: its tokenizer does not "
                                     "belong to it",
                                     *largest, vocab));
      } else {
        add_row(std::move(rows[i].row), options.max_seq_length, result);
      }
    }
    begin += batch.size();
    if (options.progress) options.progress(static_cast<int64_t>(begin), static_cast<int64_t>(data.rows.size()));
  }
  faults.throw_if_any();
  if (result.counts.rows == 0 && result.counts.untargeted == result.counts.skipped) {
    fail(ErrorKind::input, "{}: none of its {} rows has {}: nothing can be learnt", file, data.rows.size(),
         options.targets == TargetTurns::all_tokens ? "a second token"
                                                    : "a turn of the assistant, which alone counts with mask_prompt");
  }
  if (result.counts.rows == 0) {
    const int64_t without = result.counts.untargeted;
    fail(ErrorKind::input,
         "{}: none of its {} rows has a target within the first {} tokens (max_seq_length){}: nothing can be learnt",
         file, data.rows.size(), options.max_seq_length,
         without > 0 ? fmt::format(", and {} have none at all", without) : "");
  }
  const auto rows_of = [&](RowKind kind) {
    return std::count_if(data.rows.begin(), data.rows.end(), [&](const DataRow& row) { return row.kind == kind; });
  };
  result.counts.tokens = static_cast<int64_t>(result.ids.size());
  result.counts.blank = data.blank;
  result.counts.text = rows_of(RowKind::text);
  result.counts.completion = rows_of(RowKind::completion);
  result.counts.chat = rows_of(RowKind::chat);
  return result;
}

DataSummary summary_of(const std::string& file, const RowCounts& counts) {
  return {.file = file,
          .rows = counts.rows,
          .tokens = counts.tokens,
          .targets = counts.targets,
          .truncated = counts.truncated,
          .skipped = counts.skipped,
          .untargeted = counts.untargeted,
          .blank = counts.blank,
          .text = counts.text,
          .completion = counts.completion,
          .chat = counts.chat};
}

}  // namespace

Dataset Dataset::open(const std::filesystem::path& jsonl, Text& text, const DataOptions& options, int64_t vocab) {
  const std::string file = jsonl.string();
  if (options.max_seq_length < 2) {
    fail(ErrorKind::input, "max_seq_length: is {}; a row needs 2 tokens, one to predict from and one to predict",
         options.max_seq_length);
  }
  if (!std::filesystem::exists(jsonl)) {
    fail(ErrorKind::input, "{}: {}", file,
         std::filesystem::is_symlink(jsonl) ? "a link to a file that is not there" : "no such file");
  }
  if (!std::filesystem::is_regular_file(jsonl)) fail(ErrorKind::input, "{}: is not a file", file);
  const MappedFile data(jsonl);
  const Digest key = key_of(data.text(), text, options, vocab);

  Dataset result;
  if (auto cached = CachedRows::find(key)) {
    result.rows_ = std::move(*cached);
  } else {
    const RowFields fields{options.text_feature, options.prompt_feature, options.completion_feature,
                           options.chat_feature};
    const DataRows rows = check_rows(file, data.text(), fields);
    result.rows_ = CachedRows::keep(key, tokenize(file, rows, fields, text, options, vocab));
  }
  result.summary_ = summary_of(file, result.rows_.counts);
  return result;
}

RowView Dataset::row(int64_t index) const {
  if (index < 0 || index >= rows()) fail(ErrorKind::input, "{}: no row {} of {}", summary_.file, index, rows());
  const auto i = static_cast<size_t>(index);
  const auto begin = static_cast<size_t>(rows_.offsets[i]), size = static_cast<size_t>(rows_.offsets[i + 1]) - begin;
  return {rows_.ids.subspan(begin, size), rows_.targets.subspan(begin, size), rows_.target_counts[i], index};
}

int64_t Dataset::length(int64_t index) const { return static_cast<int64_t>(row(index).ids.size()); }

}  // namespace trunkline

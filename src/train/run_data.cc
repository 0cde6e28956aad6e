#include "train/run_data.h"

#include "model/text.h"
#include "train/together.h"

namespace trunkline {
namespace {

RunData read(const TrainOptions& options, int64_t vocab) {
  Text text(options.model);
  const auto open = [&](const char* file) {
    Dataset rows = Dataset::open(options.data / file, text, options.rows, vocab);
    return options.packing ? Sequences::packed(std::move(rows), options.rows.max_seq_length)
                           : Sequences(std::move(rows));
  };
  RunData data;
  data.train.emplace(open("train.jsonl"));
  if (options.val_batches != 0 && std::filesystem::exists(options.data / "valid.jsonl")) {
    data.valid.emplace(open("valid.jsonl"));
  }
  if (options.test) data.test.emplace(open("test.jsonl"));
  data.warnings = text.warnings();
  return data;
}

// Whether no lower rank runs on this rank's host.
bool is_first_on_host(const Group& group) {
  for (int rank = 0; rank < group.rank(); ++rank) {
    if (group.host_of(rank) == group.host_of(group.rank())) return false;
  }
  return true;
}

}  // namespace

RunData read_data(Group& group, const TrainOptions& options, int64_t vocab) {
  const bool first = is_first_on_host(group);
  RunData data;
  for (const bool turn : {true, false}) {
    together(group, [&] {
      if (first == turn) data = read(options, vocab);
    });
  }
  return data;
}

}  // namespace trunkline

#include "train/run_data.h"

#include "base/fail.h"
#include "model/text.h"
#include "train/together.h"

namespace trunkline {
namespace {

void end_if_wished(const InterruptWatch& interrupts) {
  if (interrupts.wished()) fail(ErrorKind::system, "interrupted");
}

RunData read(const TrainOptions& options, int64_t vocab, const InterruptWatch& interrupts) {
  end_if_wished(interrupts);
  Text text(options.model);
  DataOptions row_options = options.rows;
  row_options.progress = [&](int64_t, int64_t) { end_if_wished(interrupts); };
  const auto open = [&](const char* file) {
    Dataset rows = Dataset::open(options.data / file, text, row_options, vocab);
    return options.packing ? Sequences::packed(std::move(rows), options.rows.max_seq_length)
                           : Sequences(std::move(rows));
  };
  RunData data;
  data.train.emplace(open("train.jsonl"));
  // A link to nowhere is there, and wrong.
  if (options.val_batches != 0 && exists(symlink_status(options.data / "valid.jsonl"))) {
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

std::optional<RunData> read_data(Group& group, const TrainOptions& options, int64_t vocab,
                                 const InterruptWatch& interrupts) {
  const bool first = is_first_on_host(group);
  RunData data;
  for (const bool turn : {true, false}) {
    int64_t interrupted = 0;
    together(group, [&] {
      if (first != turn) return;
      try {
        data = read(options, vocab, interrupts);
      } catch (const Error&) {
        if (!interrupts.wished()) throw;
        interrupted = 1;  // whatever it was: the signal may have reached the tokenizer's process too
      }
    });
    group.all_max(&interrupted, &interrupted, 1, Dtype::i64);
    if (interrupted == 0) continue;
    if (group.rank() == 0) fmt::print("interrupted before the first step: nothing was trained\n");
    return std::nullopt;
  }
  return data;
}

}  // namespace trunkline

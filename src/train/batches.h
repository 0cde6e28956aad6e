// Which rows an optimizer step takes, and which rank computes which of them in which micro-batch.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace trunkline {

// The order of rows over epochs. Step s of the run takes rows_per_step rows; which ones depends on the seed, the number
// of rows and rows_per_step alone (never on ranks or micro-batches). Every row is used once an epoch; an epoch's last
// step takes what is left.
class StepRows {
 public:
  StepRows(int64_t rows, int64_t rows_per_step, uint64_t seed);
  int64_t steps_per_epoch() const;
  // Row indices of step `step` (from 0), in no particular order. Not for several threads at once.
  std::vector<int64_t> step(int64_t step) const;

 private:
  int64_t rows_, rows_per_step_;
  uint64_t seed_;
  mutable int64_t shuffled_epoch_ = -1;
  mutable std::vector<int64_t> order_;  // of the rows in that epoch
};

// A micro-batch: rows that go through the model together.
using MicroBatch = std::vector<int64_t>;

// Spreads a step's rows over `ranks` so that they carry nearly equal tokens, then cuts each rank's rows, sorted by
// length, into micro-batches of at most `rows_per_micro_batch`; of fewer where that saves more padding than a further
// micro-batch costs. lengths[i] is the number of tokens of rows[i]. Deterministic; a rank may get none. Result:
// [rank][micro-batch].
std::vector<std::vector<MicroBatch>> spread(std::span<const int64_t> rows, std::span<const int64_t> lengths, int ranks,
                                            int64_t rows_per_micro_batch);

}  // namespace trunkline

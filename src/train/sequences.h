// The sequences that go through the model: a data file's rows, one each, or several packed into one.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "train/dataset.h"

namespace trunkline {

// Which of the rows with these lengths share a sequence of at most `most` tokens: longest first, each goes into the
// fullest sequence that has room for it (best fit, decreasing: at most 11/9 of the fewest sequences there can be, and
// one). Depends on the lengths alone. A row longer than `most` is alone.
std::vector<std::vector<int64_t>> pack(std::span<const int64_t> lengths, int64_t most);

class Sequences {
 public:
  // A row each.
  explicit Sequences(Dataset rows);
  // Rows packed into sequences of at most `most` tokens.
  static Sequences packed(Dataset rows, int64_t most);

  const Dataset& dataset() const { return dataset_; }
  int64_t count() const { return static_cast<int64_t>(ends_.size()); }
  // The rows of sequence `index`, as they stand one after the other; and how many tokens and targets they have.
  std::vector<RowView> rows(int64_t index) const;
  int64_t length(int64_t index) const;
  int64_t targets(int64_t index) const;

 private:
  std::span<const int64_t> row_numbers(int64_t index) const;

  Dataset dataset_;
  std::vector<int64_t> order_;  // row numbers, sequence by sequence
  std::vector<size_t> ends_;    // of each sequence in order_
};

}  // namespace trunkline

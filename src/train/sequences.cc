#include "train/sequences.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/fail.h"

namespace trunkline {

std::vector<std::vector<int64_t>> pack(std::span<const int64_t> lengths, int64_t most) {
  std::vector<int64_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), int64_t{0});
  const auto length = [&](int64_t row) { return lengths[static_cast<size_t>(row)]; };
  std::ranges::stable_sort(longest_first, std::ranges::greater{}, length);
  std::vector<std::vector<int64_t>> sequences;
  std::set<std::pair<int64_t, size_t>> room;  // left in each sequence
  for (const int64_t row : longest_first) {
    const auto found = room.lower_bound({length(row), 0});
    int64_t left = most;
    size_t sequence = sequences.size();
    if (found == room.end()) {
      sequences.emplace_back();
    } else {
      std::tie(left, sequence) = *found;
      room.erase(found);
    }
    sequences[sequence].push_back(row);
    room.emplace(left - length(row), sequence);
  }
  return sequences;
}

Sequences::Sequences(Dataset rows) : dataset_(std::move(rows)) {
  order_.resize(static_cast<size_t>(dataset_.rows()));
  ends_.resize(order_.size());
  std::iota(order_.begin(), order_.end(), int64_t{0});
  std::iota(ends_.begin(), ends_.end(), size_t{1});
}

Sequences Sequences::packed(Dataset rows, int64_t most) {
  Sequences result(std::move(rows));
  std::vector<int64_t> lengths;
  for (const int64_t row : result.order_) lengths.push_back(result.dataset_.length(row));
  result.order_.clear();
  result.ends_.clear();
  for (const std::vector<int64_t>& sequence : pack(lengths, most)) {
    result.order_.insert(result.order_.end(), sequence.begin(), sequence.end());
    result.ends_.push_back(result.order_.size());
  }
  return result;
}

std::span<const int64_t> Sequences::row_numbers(int64_t index) const {
  if (index < 0 || index >= count()) {
    fail(ErrorKind::input, "{}: no sequence {} of {}", dataset_.summary().file, index, count());
  }
  const auto i = static_cast<size_t>(index);
  const size_t begin = i == 0 ? 0 : ends_[i - 1];
  return std::span(order_).subspan(begin, ends_[i] - begin);
}

std::vector<RowView> Sequences::rows(int64_t index) const {
  std::vector<RowView> views;
  for (const int64_t row : row_numbers(index)) views.push_back(dataset_.row(row));
  return views;
}

int64_t Sequences::length(int64_t index) const {
  int64_t tokens = 0;
  for (const int64_t row : row_numbers(index)) tokens += dataset_.length(row);
  return tokens;
}

int64_t Sequences::targets(int64_t index) const {
  int64_t targets = 0;
  for (const int64_t row : row_numbers(index)) targets += dataset_.row(row).target_count;
  return targets;
}

}  // namespace trunkline

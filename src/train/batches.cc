#include "train/batches.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/fail.h"
#include "base/random.h"

namespace trunkline {

StepRows::StepRows(int64_t rows, int64_t rows_per_step, uint64_t seed)
    : rows_(rows), rows_per_step_(rows_per_step), seed_(seed) {
  if (rows < 1) fail(ErrorKind::input, "there are no rows to train on");
  if (rows_per_step < 1) fail(ErrorKind::input, "an optimizer step needs at least one row, not {}", rows_per_step);
}

int64_t StepRows::steps_per_epoch() const { return (rows_ + rows_per_step_ - 1) / rows_per_step_; }

std::vector<int64_t> StepRows::step(int64_t step) const {
  if (step < 0) fail(ErrorKind::input, "step {} is before the first", step);
  const int64_t epoch = step / steps_per_epoch();
  if (epoch != shuffled_epoch_) {
    order_.resize(static_cast<size_t>(rows_));
    std::iota(order_.begin(), order_.end(), int64_t{0});
    Random random(Random(seed_).next() + static_cast<uint64_t>(epoch));
    random.shuffle(std::span(order_));
    shuffled_epoch_ = epoch;
  }
  const int64_t begin = step % steps_per_epoch() * rows_per_step_;
  return {order_.begin() + begin, order_.begin() + std::min(rows_, begin + rows_per_step_)};
}

namespace {

// What a micro-batch costs beside its positions, in positions: its gradients are added to those of the others, three
// passes over memory of the model's size.
constexpr int64_t kMicroBatchCost = 64;

// Cuts rows, longest first, into micro-batches of at most `most`, so that the positions to compute, padding included,
// and the number of micro-batches cost least.
std::vector<MicroBatch> cut(const MicroBatch& rows, const std::vector<int64_t>& lengths, int64_t most) {
  const size_t count = rows.size();
  std::vector<int64_t> cost(count + 1, 0);  // of the rows from i on, cut best; next[i]: where the first part ends
  std::vector<size_t> next(count + 1, count);
  for (size_t i = count; i-- > 0;) {
    cost[i] = std::numeric_limits<int64_t>::max();
    for (size_t end = i + 1; end <= count && static_cast<int64_t>(end - i) <= most; ++end) {
      const int64_t total = kMicroBatchCost + static_cast<int64_t>(end - i) * lengths[i] + cost[end];
      if (total > cost[i]) continue;  // of equals, the larger first part
      cost[i] = total;
      next[i] = end;
    }
  }
  std::vector<MicroBatch> parts;
  for (size_t i = 0; i < count; i = next[i]) {
    parts.emplace_back(rows.begin() + static_cast<ptrdiff_t>(i), rows.begin() + static_cast<ptrdiff_t>(next[i]));
  }
  return parts;
}

}  // namespace

std::vector<std::vector<MicroBatch>> spread(std::span<const int64_t> rows, std::span<const int64_t> lengths, int ranks,
                                            int64_t rows_per_micro_batch) {
  if (ranks < 1) fail(ErrorKind::input, "rows are spread over at least one rank, not {}", ranks);
  if (rows_per_micro_batch < 1) {
    fail(ErrorKind::input, "a micro-batch holds at least one row, not {}", rows_per_micro_batch);
  }
  if (rows.size() != lengths.size()) fail(ErrorKind::input, "{} rows have {} lengths", rows.size(), lengths.size());

  // Longest first, each to the rank that has the fewest tokens so far: no rank ends more than 1/3 above the best.
  std::vector<size_t> order(rows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return lengths[a] != lengths[b] ? lengths[a] > lengths[b] : rows[a] < rows[b]; });
  std::vector<int64_t> tokens(static_cast<size_t>(ranks), 0);
  std::vector<MicroBatch> mine(static_cast<size_t>(ranks));
  std::vector<std::vector<int64_t>> sizes(static_cast<size_t>(ranks));
  for (const size_t i : order) {
    const auto least = static_cast<size_t>(std::min_element(tokens.begin(), tokens.end()) - tokens.begin());
    tokens[least] += lengths[i];
    mine[least].push_back(rows[i]);
    sizes[least].push_back(lengths[i]);
  }
  std::vector<std::vector<MicroBatch>> result;
  for (size_t rank = 0; rank < mine.size(); ++rank)
    result.push_back(cut(mine[rank], sizes[rank], rows_per_micro_batch));
  return result;
}

}  // namespace trunkline

#include "train/loss.h"

#include <algorithm>
#include <vector>

#include "train/cross_entropy.h"

namespace trunkline {
namespace {

// Hidden states where targets are predicted: [T, C].
mx::array target_states(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  const mx::array hidden = decoder.hidden(parameters, batch.ids);
  return mx::take(mx::reshape(hidden, {-1, hidden.shape(-1)}), batch.positions, 0);
}

}  // namespace

Batch make_batch(std::span<const RowView> rows) {
  size_t length = 1;  // the last target's index in the longest row
  for (const RowView& row : rows) {
    size_t last = row.targets.size();
    while (last > length && row.targets[last - 1] == 0) --last;
    length = std::max(length, last - std::min<size_t>(last, 1));
  }
  std::vector<int32_t> ids(rows.size() * length), positions, targets;
  for (size_t r = 0; r < rows.size(); ++r) {
    const RowView& row = rows[r];
    std::copy_n(row.ids.begin(), std::min(length, row.ids.size()), ids.begin() + static_cast<ptrdiff_t>(r * length));
    for (size_t t = 1; t < row.ids.size(); ++t) {
      if (row.targets[t] == 0) continue;
      positions.push_back(static_cast<int32_t>(r * length + t - 1));
      targets.push_back(row.ids[t]);
    }
  }
  const int count = static_cast<int>(targets.size());
  return {mx::array(ids.begin(), {static_cast<int>(rows.size()), static_cast<int>(length)}, mx::int32),
          mx::array(positions.begin(), {count}, mx::int32), mx::array(targets.begin(), {count}, mx::int32), count};
}

mx::array summed_loss(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  return summed_cross_entropy_value(target_states(decoder, parameters, batch), decoder.head(parameters), batch.targets);
}

LossAndGradients loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                                    const Batch& batch) {
  const std::vector<int> wanted(trained.tensors().begin(), trained.tensors().end());
  const auto loss = [&](const std::vector<mx::array>& in) {
    return summed_cross_entropy(target_states(decoder, in, batch), decoder.head(in), batch.targets);
  };
  auto [value, gradients] = mx::value_and_grad(loss, wanted)(parameters);
  return {std::move(value), std::move(gradients)};
}

}  // namespace trunkline

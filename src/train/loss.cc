#include "train/loss.h"

#include <algorithm>
#include <vector>

#include "train/cross_entropy.h"

namespace trunkline {
namespace {

// Hidden states where targets are predicted: [T, C].
mx::array target_states(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  const mx::array hidden = decoder.hidden(parameters, batch.ids, batch.places, batch.mask);
  return mx::take(mx::reshape(hidden, {-1, hidden.shape(-1)}), batch.positions, 0);
}

}  // namespace

Batch make_batch(std::span<const std::vector<RowView>> sequences) {
  // What of a row has to be computed: up to before its last target.
  const auto used = [](const RowView& row) {
    size_t last = row.targets.size();
    while (last > 1 && row.targets[last - 1] == 0) --last;
    return std::max<size_t>(last, 1) - 1;
  };
  size_t length = 1;  // of the longest sequence
  for (const std::vector<RowView>& rows : sequences) {
    size_t total = 0;
    for (const RowView& row : rows) total += used(row);
    length = std::max(length, total);
  }
  std::vector<int32_t> ids(sequences.size() * length), segments(ids.size(), -1), places(ids.size(), 0), positions,
      targets;
  bool packed = false;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const std::vector<RowView>& rows = sequences[s];
    size_t at = s * length;
    for (size_t r = 0; r < rows.size(); ++r) {
      const RowView& row = rows[r];
      const size_t count = used(row);
      std::copy_n(row.ids.begin(), count, ids.begin() + static_cast<ptrdiff_t>(at));
      std::fill_n(segments.begin() + static_cast<ptrdiff_t>(at), count, static_cast<int32_t>(r));
      std::iota(places.begin() + static_cast<ptrdiff_t>(at), places.begin() + static_cast<ptrdiff_t>(at + count), 0);
      for (size_t t = 1; t <= count; ++t) {
        if (row.targets[t] == 0) continue;
        positions.push_back(static_cast<int32_t>(at + t - 1));
        targets.push_back(row.ids[t]);
      }
      at += count;
    }
    packed = packed || rows.size() > 1;
  }
  const int count = static_cast<int>(targets.size()), tokens = static_cast<int>(length);
  const mx::Shape shape = {static_cast<int>(sequences.size()), tokens};
  return {.ids = mx::array(ids.begin(), shape, mx::int32),
          .positions = mx::array(positions.begin(), {count}, mx::int32),
          .targets = mx::array(targets.begin(), {count}, mx::int32),
          .target_count = count,
          .places = packed ? mx::array(places.begin(), shape, mx::int32) : mx::arange(tokens, mx::int32),
          .mask = packed ? AttentionMask::packed(segments, tokens) : AttentionMask{}};
}

Batch make_batch(std::span<const RowView> rows) {
  std::vector<std::vector<RowView>> sequences;
  for (const RowView& row : rows) sequences.push_back({row});
  return make_batch(sequences);
}

mx::array summed_loss(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  return summed_cross_entropy_value(target_states(decoder, parameters, batch), decoder.head_weight(parameters), batch.targets);
}

LossAndGradients loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                                    const Batch& batch) {
  const std::vector<int> wanted(trained.tensors().begin(), trained.tensors().end());
  const auto loss = [&](const std::vector<mx::array>& in) {
    return summed_cross_entropy(target_states(decoder, in, batch), decoder.head_weight(in), batch.targets);
  };
  auto [value, gradients] = mx::value_and_grad(loss, wanted)(parameters);
  return {std::move(value), std::move(gradients)};
}

}  // namespace trunkline

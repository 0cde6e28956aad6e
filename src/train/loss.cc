#include "train/loss.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "train/cross_entropy.h"

namespace trunkline {
namespace {

// Hidden states where targets are predicted: [T, C].
mx::array target_states(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  const mx::array hidden =
      decoder.hidden(parameters, batch.ids, batch.places, batch.mask, batch.dropout ? &*batch.dropout : nullptr);
  return mx::take(mx::reshape(hidden, {-1, hidden.shape(-1)}), batch.positions, 0);
}

uint32_t token_key(int64_t row, size_t place) {
  return mixed(mixed(static_cast<uint32_t>(row)) + static_cast<uint32_t>(place) * 0x9e3779b1u);
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
  std::vector<uint32_t> keys(ids.size(), 0);
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
      for (size_t t = 0; t < count; ++t) keys[at + t] = token_key(row.number, t);
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
          .mask = packed ? AttentionMask::packed(segments, tokens) : AttentionMask{},
          .keys = mx::array(keys.begin(), shape, mx::uint32)};
}

Batch make_batch(std::span<const RowView> rows) {
  std::vector<std::vector<RowView>> sequences;
  for (const RowView& row : rows) sequences.push_back({row});
  return make_batch(sequences);
}

HeadFunction head_function(const Decoder& decoder, const Parameters& parameters, std::vector<int> tensors,
                           std::optional<Dropout> dropout) {
  return [&decoder, &parameters, tensors = std::move(tensors),
          dropout = std::move(dropout)](const std::vector<mx::array>& in) {
    const Dropout* const dropped = dropout ? &*dropout : nullptr;
    if (tensors.empty()) return decoder.head(parameters, in[0], dropped);
    Parameters all = parameters;
    for (size_t i = 0; i < tensors.size(); ++i) all[static_cast<size_t>(tensors[i])] = in[i + 1];
    return decoder.head(all, in[0], dropped);
  };
}

mx::array summed_loss(const Decoder& decoder, const Parameters& parameters, const Batch& batch) {
  const mx::array states = target_states(decoder, parameters, batch);
  if (decoder.head_is_matrix()) {
    return summed_cross_entropy_value(states, decoder.head_weight(parameters), batch.targets);
  }
  return head_function_value(head_function(decoder, parameters), states, static_cast<int>(decoder.shape().vocab),
                             batch.targets);
}

LossAndGradients loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                                    const Batch& batch) {
  const std::vector<int> wanted(trained.tensors().begin(), trained.tensors().end());
  using Arrays = std::vector<mx::array>;
  const std::function<Arrays(const Arrays&)> loss = [&](const Arrays& in) -> Arrays {
    const mx::array states = target_states(decoder, in, batch);
    if (decoder.head_is_matrix()) return {summed_cross_entropy(states, decoder.head_weight(in), batch.targets)};
    Arrays at = {states};
    const std::vector<int> tensors = decoder.head_layer().adapter_tensors();
    for (const int tensor : tensors) at.push_back(in[static_cast<size_t>(tensor)]);
    const std::optional<Dropout> dropout =
        batch.dropout ? std::optional(batch.dropout->at(batch.positions)) : std::nullopt;
    return {head_function_loss(head_function(decoder, parameters, tensors, dropout), at, batch.targets)};
  };
  auto [values, gradients] = mx::value_and_grad(loss, wanted)(parameters);
  return {std::move(values.front()), std::move(gradients)};
}

}  // namespace trunkline

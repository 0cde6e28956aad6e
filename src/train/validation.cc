#include "train/validation.h"

#include <vector>

#include "base/fail.h"
#include "plan/step_blocks.h"
#include "train/batches.h"
#include "train/layerwise.h"
#include "train/loss.h"
#include "train/together.h"

namespace trunkline {

double mean_loss(Group& group, const Decoder& decoder, const Parameters& parameters, const Sequences& rows,
                 int64_t limit, int64_t rows_per_micro_batch) {
  const int64_t count = limit < 0 ? rows.count() : std::min(limit, rows.count());
  std::vector<int64_t> chosen, lengths;
  for (int64_t i = 0; i < count; ++i) {
    chosen.push_back(i * rows.count() / count);
    lengths.push_back(rows.length(chosen.back()));
  }
  const Trained nothing(std::vector<bool>(parameters.size()));
  const auto parts = spread(chosen, lengths, group.size(), rows_per_micro_batch);
  double loss = 0.0, targets = 0.0;
  together(group, [&] {
    for (const MicroBatch& micro_batch : parts[static_cast<size_t>(group.rank())]) {
      std::vector<std::vector<RowView>> sequences;
      for (const int64_t index : micro_batch) sequences.push_back(rows.rows(index));
      const Batch batch = make_batch(sequences);
      const StepBlocks blocks = choose_blocks(
          decoder.shape(),
          {.rows = batch.ids.shape(0), .tokens = batch.ids.shape(1), .targets = batch.target_count, .state_width = 0},
          0);
      loss += LayerwisePass(decoder, parameters, nothing, batch, blocks, [&] { group.advance(); }).loss();
      targets += static_cast<double>(batch.target_count);
    }
  });
  double all_loss = 0.0, all_targets = 0.0;
  for (const auto& values : gather_values(group, {loss, targets})) {
    all_loss += values[0];
    all_targets += values[1];
  }
  if (all_targets == 0.0) {
    fail(ErrorKind::input, "{}: there is no target to measure a loss on", rows.dataset().summary().file);
  }
  return all_loss / all_targets;
}

}  // namespace trunkline

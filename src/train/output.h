// OUTPUT: what may be there before a run, and the model that it holds after one.
#pragma once

#include <filesystem>
#include <optional>

#include "model/adapter.h"
#include "model/checkpoint.h"
#include "train/options.h"
#include "train/trained.h"

namespace trunkline {

// Throws Error(input) if OUTPUT holds a model or checkpoints and `resume` is not given, or if it is given and OUTPUT
// holds no run.
void check_output(const std::filesystem::path& output, bool resume);

// The settings as OUTPUT/settings.yaml, which `trunkline train -c` reads.
void write_settings(const std::filesystem::path& output, const std::vector<Setting>& settings);

// The weights of `source` (f32) where they were not trained: `computed`, parallel to its layout, may be rounded. Throws
// Error(mismatch) naming the first that is not there any more as it was.
void restore_frozen(const Checkpoint& source, const Trained& trained, const Parameters& computed, Parameters& weights);

// Writes the trained model to OUTPUT, loads it again and compares every tensor with what was trained, rounded to the
// dtype that it was saved in. Throws Error(system) naming the first that differs.
void save_model(const Checkpoint& source, const Parameters& parameters, const std::filesystem::path& output,
                std::optional<Dtype> dtype);

// The same of a trained adapter, in f32 unless `dtype` says otherwise; it is loaded again for `base`.
void save_trained_adapter(Adapter adapter, const Parameters& tensors, const Checkpoint& base,
                          const std::filesystem::path& output, std::optional<Dtype> dtype);

}  // namespace trunkline

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
// holds nothing that a run leaves: its name may be mistyped.
void check_output(const std::filesystem::path& output, bool resume);

// Throws Error(input) if a run that was to go on, and found no whole checkpoint, would write over something by
// beginning again: a model, or checkpoints that are damaged.
void check_begins_again(const std::filesystem::path& output);

// Throws Error(input) if OUTPUT holds weights. For a run at its end that has lost the checkpoint of its best
// validation: they may be those.
void check_holds_no_best(const std::filesystem::path& output);

// The settings as OUTPUT/settings.yaml, which `trunkline train -c` reads.
void write_settings(const std::filesystem::path& output, const std::vector<Setting>& settings);

// Writes the trained model to OUTPUT: `weights` (f32) of what was trained, all else as it came. Loads it again and
// compares every tensor, rounded to the dtype that it was saved in. `parameters`: parallel to the layout, f32, or what
// it was rounded to for computing; what is frozen is then read from the source again. Throws Error(system) naming the
// first tensor that differs, Error(mismatch) naming one that in the source is not what it was.
void save_model(const Checkpoint& source, const Trained& trained, const Parameters& weights,
                const Parameters& parameters, const std::filesystem::path& output, std::optional<Dtype> dtype);

// Whether OUTPUT holds what save_model would write.
bool holds_model(const Checkpoint& source, const Trained& trained, const Parameters& weights,
                 const Parameters& parameters, const std::filesystem::path& output, std::optional<Dtype> dtype);

// The same two of a trained adapter, in f32 unless `dtype` says otherwise; it is loaded again for `base`.
void save_trained_adapter(Adapter adapter, const Parameters& tensors, const Checkpoint& base,
                          const std::filesystem::path& output, std::optional<Dtype> dtype);
bool holds_adapter(const Parameters& tensors, const Checkpoint& base, const std::filesystem::path& output,
                   std::optional<Dtype> dtype);

}  // namespace trunkline

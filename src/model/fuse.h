// An adapter merged into its base: a plain model.
#pragma once

#include <filesystem>
#include <optional>

#include "model/adapter.h"

namespace trunkline {

// Merges in f32, then rounds to `dtype`, or to the dtypes of the base's weights (a quantized weight's: of its scales).
// No weight is quantized any more, and where embedding and head are one weight in the base and an adapter is of either,
// each has its own.
Checkpoint fuse(Checkpoint base, const Adapter& adapter, std::optional<mx::Dtype> dtype = std::nullopt);

// Writes a model to `directory` as save_checkpoint does, loads it again and compares every tensor. Throws Error(system)
// naming the first that differs.
void save_and_compare(const Checkpoint& checkpoint, const std::filesystem::path& directory,
                      std::optional<mx::Dtype> dtype = std::nullopt);

}  // namespace trunkline

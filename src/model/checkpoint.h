// Checkpoints as Hugging Face writes them: a directory with config.json and safetensors, one file or several with an
// index.
#pragma once

#include <mlx/mlx.h>

#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "plan/model_shape.h"

namespace trunkline {

namespace mx = mlx::core;

// A model's tensors in the order of tensor_shapes(shape).
using Parameters = std::vector<mx::array>;

struct Checkpoint {
  std::filesystem::path directory;
  ModelShape shape;
  std::vector<TensorShape> layout;    // tensor_shapes(shape)
  Parameters tensors;                 // parallel to layout, in the dtypes as stored
  std::vector<mx::Dtype> dtypes;      // parallel to layout: those dtypes, for when `tensors` has been let go
  std::vector<std::string> warnings;  // an untied-looking head beside a tied config, say
  // Top-level keys of config.json that saving sets (to a value as JSON spells it) or takes out.
  std::vector<std::pair<std::string, std::optional<std::string>>> config_edits;
};

// Throws Error(input) if a directory is none, or holds no model; an adapter is called so.
void require_model(const std::filesystem::path& directory);

// Loads every tensor. Throws Error(input) naming the file and the tensor that is missing, unknown, of the wrong shape
// or of an unsupported dtype, and every shard that the index names and the directory lacks.
Checkpoint load_checkpoint(const std::filesystem::path& directory);

// Writes `tensors` (parallel to source.layout) as a checkpoint in `directory` (made if absent, never the source's own):
// weights in the source's dtypes, or in `dtype` (which then is also written to the dtype key of config.json, the only
// edit but source.config_edits); sharded past `shard_bytes`, as transformers does; every other file of the source that
// is neither weights nor an index of weights is copied byte for byte, folders too (but for hidden ones and a training
// run's own files). Weights and indexes of weights that `directory` held before are removed. Each file is written
// beside and renamed. The same tensors give the same bytes. Of `source`, everything but `tensors` is used.
void save_checkpoint(const Checkpoint& source, const Parameters& tensors, const std::filesystem::path& directory,
                     std::optional<mx::Dtype> dtype = std::nullopt, uint64_t shard_bytes = 5'000'000'000);

// `tensors` in `dtype`; what is packed stays so.
Parameters cast(const Parameters& tensors, mx::Dtype dtype);

}  // namespace trunkline

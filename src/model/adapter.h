// Adapters in PEFT's files: a directory with adapter_config.json and adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/adapter_shape.h"
#include "model/checkpoint.h"
#include "model/safetensors.h"

namespace trunkline {

struct Adapter {
  AdapterConfig config;
  AdapterShape shape;
  std::vector<TensorShape> layout;  // tensor_shapes(shape)
  Parameters tensors;               // parallel to layout, in the dtypes as stored
  // What PEFT stores beside an adapter of the embedding or the head: the base's own weight.
  std::vector<NamedTensor> base_copies;
  std::string base_digest;            // digest_of_base() of the base that it was trained on; empty: not known (PEFT's)
  std::vector<std::string> warnings;  // of what is not wrong for certain: another base, say
};

// A name for a model's weights: of all names, shapes and dtypes, and of bytes spread over every tensor. Files and
// shards do not count. `base`'s tensors must still be there.
std::string digest_of_base(const Checkpoint& base);

// An adapter for `base`, whose tensors must still be there. Throws Error naming the file and the setting that is not
// computed here, or the tensor that is missing, unknown, of another shape or dtype, not finite, or a copy of a weight
// that the base has otherwise.
Adapter load_adapter(const std::filesystem::path& directory, const Checkpoint& base);

// Writes `adapter` to `directory` (made if absent); each file is written beside and renamed. The same adapter gives the
// same bytes, in PEFT's order. What is known of its base is in the metadata of its tensors, which PEFT does not read.
void save_adapter(const Adapter& adapter, const std::filesystem::path& directory);

// An adapter to begin training with: it changes nothing yet. A is drawn uniformly as PEFT does, B is 0 (of an
// embedding, A is 0 and B normal), magnitudes are the norms of `base`. f32.
Adapter new_adapter(const AdapterConfig& config, const Checkpoint& base, uint64_t seed);

}  // namespace trunkline

// What a run trains: the model, or an adapter for it; and which tensors that are.
#pragma once

#include <optional>
#include <vector>

#include "model/adapter.h"
#include "model/decoder.h"
#include "train/options.h"
#include "train/trained.h"

namespace trunkline {

// The settings of a new adapter for a model of this shape, in PEFT's words. Throws Error(input) naming the option that
// fits no module or layer.
AdapterConfig adapter_config(const TrainOptions& options, const ModelShape& shape);

// The adapter that a run trains, to begin with; none in a full fine-tuning. `base`'s tensors must still be there.
std::optional<Adapter> adapter_to_train(const TrainOptions& options, const Checkpoint& base);

// Of the decoder's tensors: the adapter's; in a full fine-tuning those of the last layers, where a number of layers is
// given, or all.
Trained trained_tensors(const TrainOptions& options, const Decoder& decoder);

}  // namespace trunkline

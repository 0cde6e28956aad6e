// What a run is made of, as facts that ranks compare with each other and a resumed run with its snapshot.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/adapter_shape.h"
#include "plan/model_shape.h"
#include "train/agreement.h"
#include "train/dataset.h"
#include "train/options.h"

namespace trunkline {

// Settings of scope `run`, and of scope `pace` too if `pace`.
std::vector<Fact> facts_of(const TrainOptions& options, bool pace);
// Each key of config.json that shapes the model.
std::vector<Fact> facts_of(const ModelShape& shape);
// The rows as tokenized.
Fact fact_of(const std::string& file, const Dataset& rows);
// A checksum a tensor.
std::vector<Fact> facts_of(const std::vector<TensorShape>& layout, const std::vector<uint32_t>& hashes);

// Which modules an adapter has, and what it computes there.
Fact fact_of(const AdapterShape& adapter);
// One checksum of the tensors of the model that a run begins with, from each one's.
Fact fact_of_base(const std::vector<uint32_t>& hashes);

}  // namespace trunkline

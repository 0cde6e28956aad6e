// Proof that the ranks do the same thing: before step 1, and of their weights as they go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "trunkline/group.h"

namespace trunkline {

struct Fact {
  std::string name, value;
};

// Throws Error(mismatch) on every rank if the ranks' facts differ, naming each difference with its values and ranks.
void require_agreement(Group& group, const std::vector<Fact>& facts);

// What differs between two lists of facts: "batch_size: 4 there, 8 here"; empty if nothing does.
std::string differences(const std::vector<Fact>& there, const std::vector<Fact>& here);

// CRC32C of each tensor's bytes.
std::vector<uint32_t> hashes_of(const Parameters& parameters);

// Where weights that differ may come from. `checked`: whether what travels between ranks has checksums.
std::string suspects(int ranks, bool checked);

// Throws Error(mismatch) on every rank, naming the first tensor whose bits are not the same on all ranks.
void require_equal_weights(Group& group, const std::vector<TensorShape>& layout, const Parameters& parameters,
                           int64_t step);

}  // namespace trunkline

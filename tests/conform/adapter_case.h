// A golden adapter: what PEFT computes with one on the base of a golden case, as a folder of files.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "conform/golden_case.h"
#include "model/adapter.h"

namespace trunkline::conform {

struct AdapterCase {
  std::filesystem::path directory;
  GoldenCase base;                                // at CASE/../../golden/BASE: its checkpoint, ids and labels
  Adapter before, after;                          // the three steps of `run`
  mx::array logits, after_logits, merged_logits;  // [B, L, V] f32
  double loss = 0;
  int64_t trainable = 0;
  GoldenRun run;
  std::vector<mx::array> gradients;  // parallel to the adapter's layout, f32
};

// Whether a folder is one, rather than a case of its own.
bool is_adapter_case(const std::filesystem::path& directory);

// Throws Error naming the file that is missing or malformed.
AdapterCase read_adapter_case(const std::filesystem::path& directory);

}  // namespace trunkline::conform

// A golden case: a small checkpoint and what Hugging Face computes on it, as a folder of files.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "model/checkpoint.h"
#include "model/safetensors.h"
#include "train/optimizer.h"

namespace trunkline::conform {

// One of a case's runs: an optimizer, and the losses before each step and after the last.
struct GoldenRun {
  std::string name;
  OptimizerOptions optimizer;
  double learning_rate = 0;
  double max_norm = 0;  // global norm to clip to; 0: none
  int steps = 0;
  std::vector<double> losses;  // steps + 1
};

struct GoldenCase {
  std::filesystem::path directory;
  Checkpoint checkpoint;
  // [B, L] of forward.safetensors: int32 ids (0 is padding) and labels (-100 where there is no target).
  std::vector<int32_t> ids, labels;
  int rows = 0, length = 0;
  mx::array logits;  // [B, L, V] f32
  double loss = 0;
  double grad_norm = 0;
  std::vector<GoldenRun> runs;
  std::vector<int32_t> prompt, continuation;

  // Tensors parallel to the checkpoint's layout: FILE is grads, after-sgd or after-adamw.
  Parameters tensors(const std::string& file) const;
};

// Throws Error naming the file that is missing or malformed.
GoldenCase read_case(const std::filesystem::path& directory);
// The checkpoint and forward.safetensors alone.
GoldenCase read_base(const std::filesystem::path& directory);

// A tensor of a file, evaluated, in `dtype`. Throws Error naming it if it is of another shape than `dims`.
mx::array load_as(const SafetensorsFile& file, const std::string& name, mx::Dtype dtype,
                  const std::vector<int64_t>& dims);

// The run that a case.json's sentence describes: "lr 0.1, momentum 0.9, weight decay 0.01 (added to the gradient), 3
// steps". Throws Error(input) at a phrase that it does not understand.
GoldenRun read_run(const std::string& name, const std::string& description);

}  // namespace trunkline::conform

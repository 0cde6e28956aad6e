// What a step computes while its gradients cross: a timer in computation's place, or a model on MLX.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "train/pieces.h"
#include "train/shards.h"
#include "train/timeline.h"
#include "trunkline/dtype.h"
#include "trunkline/group.h"

namespace trunkline {

// Seconds of gathering all weights of a sharded optimizer, and of those among them that a forward pass needs at once:
// nothing is there to hide these behind.
struct GatherTimes {
  double all = 0.0, first = 0.0;
};

class StepWork {
 public:
  virtual ~StepWork() = default;

  virtual std::string describe() const = 0;
  virtual int64_t gradient_bytes() const = 0;
  // Of step `number`, from 1; `at_once`: of a warm-up, which need not take computation's time.
  virtual void begin(int64_t number, bool at_once) = 0;
  virtual void forward() = 0;
  virtual void backward(const HandOver& hand_over) = 0;
  // A piece's gradients, summed over the ranks unless `summed` is false; inside backward, or after it.
  virtual void update(const Piece& piece, std::vector<mx::array> gradients) = 0;
  virtual void end() = 0;
  // With a sharded optimizer, whose weights forward gathers as it goes: the parts; and how long gathering takes with
  // nothing else going on (collective, between steps).
  virtual const Shards* shards() const { return nullptr; }
  virtual GatherTimes gather_alone() { return {}; }
  // How many elements of what came back since begin() are not what they must be. Collective.
  virtual uint64_t count_wrong() = 0;
};

struct EmulatedWork {
  int64_t layers = 1;
  double forward_s = 0.0, backward_s = 0.0, update_s = 0.0;
  // Of all gradients; those of the head go first, those of the embedding last, and the rest is the layers', from last
  // to first.
  int64_t gradient_bytes = 0, head_bytes = 0, embedding_bytes = 0;
};

// A timer. The backward pass's time is shared by head and layers as their bytes are, the update's by all pieces. The
// gradients are real memory, filled anew in each step with numbers whose sums are known; `wire`: as what they travel.
std::unique_ptr<StepWork> emulated_work(Group& group, const EmulatedWork& work, Dtype wire, bool check);

struct ModelWork {
  std::filesystem::path config;  // config.json of the model's shape
  int64_t rows = 1, tokens = 256;
  bool shard_optimizer = false;
};

// A model of random weights on random tokens, with plain SGD. Right is what leaves all ranks with the same weights. The
// timeline gets what forward waits for weights (as exposed).
std::unique_ptr<StepWork> model_work(Group& group, const ModelWork& work, Timeline& timeline, bool summed);

}  // namespace trunkline

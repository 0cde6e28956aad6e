// How a training step is cut so that it fits: pure arithmetic, for the runtime and for forecasts alike.
#pragma once

#include <cstdint>
#include <optional>

#include "plan/model_shape.h"

namespace trunkline {

// What layers make again in the backward pass: what memory does not hold, all but their inputs, or nothing.
enum class Recompute { automatic, all, none };

// Sizes of the blocks that a layer-wise step works in, and what it keeps of its forward pass.
struct StepBlocks {
  int64_t queries = 0;     // of each row whose attention scores exist at once
  int64_t tokens = 0;      // of each row whose products in a layer exist at once, where they are not kept
  int64_t logits = 0;      // targets whose logits exist at once
  int64_t vocab_rows = 0;  // rows of the head whose gradient exists at once
  // Layers, counted from the last, that keep all of their forward pass that the backward pass would make again at some
  // cost; before them those that keep their products, but neither attention's weights nor what the MLP's last product
  // is made of; and those that keep what attention gave. The others keep their input alone.
  int64_t keep_all = 0, keep_products = 0, keep_attention = 0;

  bool operator==(const StepBlocks&) const = default;
};

// What a step is made of.
struct StepSize {
  int64_t rows = 1, tokens = 0;  // of the batch, padded
  int64_t targets = 0;
  int64_t width = 4;                // bytes of a weight, and of what is computed with it
  int64_t state_width = 8;          // bytes of optimizer state a parameter
  bool holds_gradients = false;     // all of them at once, in f32
  int64_t pieces_on_their_way = 2;  // of gradients, at most, to other ranks
  bool makes_scores = true;         // attention's; not where the device's kernels make none
  // Blocks that exist at once: the one that is computed, and one queued behind it; 1 where those queued wait for
  // memory.
  int64_t blocks_at_once = 2;
  // Where not all is trained, as `width` wide weights: an adapter, or some layers.
  struct Part {
    int64_t parameters = 0;          // that are trained
    int64_t weight_bytes = 0;        // of all weights, frozen ones among them
    int64_t layers = 0;              // that a gradient passes, counted from the last
    int64_t mlp = 0, attention = 0;  // trained parameters of a layer's halves, at most
    bool head = false;               // whether the head's matrix or the embedding is trained
    int64_t logit_copies = 2;        // of a block, in f32, at once: more where the head is more than a matrix
  };
  std::optional<Part> part = std::nullopt;
};

// Bytes that a step has at once, at its worst moment, by part: at the end of the forward pass, at the first layer of
// the backward pass, or at the first that kept no more than its input.
struct StepMemory {
  int64_t weights = 0, state = 0;
  int64_t gradients = 0;  // held or on their way
  int64_t inputs = 0;     // one a layer
  int64_t kept = 0;       // of the forward pass, beyond inputs
  int64_t blocks = 0;     // what is worked on
  int64_t total() const { return weights + state + gradients + inputs + kept + blocks; }
};
StepMemory step_memory(const ModelShape& shape, const StepSize& size, const StepBlocks& blocks);

// Blocks for a step in `limit` bytes; what is not 0 in `asked` is taken as it is. Their sizes follow from the shape,
// the step's size and the limit; as many layers keep what they can as fit. The head's gradient is whole, or in slices
// that leave room to keep more: whichever makes less again. Where nothing fits, the smallest step is returned, and
// step_memory tells.
StepBlocks choose_blocks(const ModelShape& shape, const StepSize& size, int64_t limit, const StepBlocks& asked = {},
                         Recompute recompute = Recompute::automatic);

}  // namespace trunkline

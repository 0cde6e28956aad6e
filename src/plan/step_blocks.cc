#include "plan/step_blocks.h"

#include <algorithm>

namespace trunkline {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// What a block of scores, products or logits may take: little beside the whole, enough to keep a device busy.
constexpr int64_t kLeastBlock = 128 * kMiB, kMostBlock = 1024 * kMiB;
constexpr int64_t kBlockShare = 128;  // of the limit
constexpr int64_t kLeastQueries = 128;
constexpr int64_t kHeadBytes = 256 * kMiB;
// Attention's backward pass has the weights, their cotangent and the scores' at once.
constexpr int64_t kScoreCopies = 3;

// A multiple of 16 if there is room for one, at least 1, at most `most`.
int64_t block_of(int64_t budget, int64_t bytes_each, int64_t most) {
  const int64_t fits = std::max<int64_t>(1, budget / std::max<int64_t>(1, bytes_each));
  if (fits >= most) return std::max<int64_t>(1, most);
  return fits >= 16 ? fits / 16 * 16 : fits;
}

int64_t head_parameters(const ModelShape& s) { return s.vocab * s.hidden; }

int64_t layer_parameters(const ModelShape& s) {
  const int64_t heads = (s.tied ? 1 : 2) * head_parameters(s);
  return (s.parameters() - heads - s.hidden) / std::max<int64_t>(1, s.layers);
}

int64_t head_width(const ModelShape& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

// Values a token of a layer that keeping what attention gave adds to its input, and that keeping all does.
int64_t attention_width(const ModelShape& s) { return s.heads * s.head_dim; }
int64_t full_width(const ModelShape& s) { return head_width(s) + attention_width(s) + s.hidden + 2 * s.intermediate; }

}  // namespace

StepMemory step_memory(const ModelShape& s, const StepSize& size, const StepBlocks& blocks) {
  const int64_t tokens = size.rows * size.tokens, parameters = s.parameters(), layer = layer_parameters(s);
  StepMemory memory;
  memory.weights = parameters * size.width;
  memory.state = parameters * size.state_width;
  // A layer's gradients, and one more layer's that are on their way to the other ranks. A tied head's are held from the
  // head's pass to the embedding's, where they are not made in slices.
  const bool whole_head = blocks.vocab_rows >= s.vocab;
  const int64_t head = 4 * s.hidden * std::min(blocks.vocab_rows, s.vocab);
  memory.gradients = size.holds_gradients   ? 4 * parameters
                     : whole_head && s.tied ? head + 2 * 4 * layer
                                            : 2 * std::max(head, 4 * layer);
  memory.inputs = tokens * s.hidden * size.width * (s.layers + 2);
  memory.kept = tokens * size.width * (blocks.keep_all * full_width(s) + blocks.keep_attention * attention_width(s));
  // Inside a layer: queries, keys and values, their cotangents and attention's result, whole; then the larger of a
  // block of queries and a block of tokens. In the head: the last layer's output where targets are, and logits.
  const int64_t whole = tokens * size.width * (2 * head_width(s) + 2 * attention_width(s));
  const int64_t scores = kScoreCopies * 4 * size.rows * s.heads * std::min(blocks.queries, size.tokens) * size.tokens;
  const int64_t products = size.width * size.rows * std::min(blocks.tokens, size.tokens) *
                           (6 * s.intermediate + 2 * head_width(s) + 4 * s.hidden);
  const int64_t logits =
      2 * 4 * std::min(blocks.logits, size.targets) * s.vocab + 2 * size.targets * s.hidden * size.width;
  memory.blocks = std::max(whole + std::max(scores, products), logits);
  return memory;
}

StepBlocks choose_blocks(const ModelShape& s, const StepSize& size, int64_t limit, const StepBlocks& asked,
                         Recompute recompute) {
  StepBlocks blocks = asked;
  const auto choose = [](int64_t& field, int64_t value) {
    if (field == 0) field = value;
  };
  const int64_t budget = std::clamp(limit / kBlockShare, kLeastBlock, kMostBlock);
  // Queries see only what is before them: in blocks, most of the other half of the scores is never made.
  const int64_t queries = std::min(size.tokens, std::max(kLeastQueries, (size.tokens + 3) / 4));
  choose(blocks.queries, block_of(budget, 4 * size.rows * s.heads * size.tokens, queries));
  choose(blocks.tokens,
         block_of(budget / 2, size.width * size.rows * (2 * s.intermediate + head_width(s)), size.tokens));
  choose(blocks.logits, block_of(budget, 4 * s.vocab, std::max<int64_t>(1, size.targets)));
  const auto fits = [&] { return step_memory(s, size, blocks).total() <= limit; };
  if (blocks.vocab_rows == 0) {
    blocks.vocab_rows = s.vocab;
    if (!fits()) blocks.vocab_rows = block_of(kHeadBytes, 4 * s.hidden, s.vocab);
  }
  blocks.keep_all = blocks.keep_attention = 0;
  if (recompute == Recompute::all) return blocks;
  if (recompute == Recompute::none) {
    blocks.keep_all = s.layers;
    return blocks;
  }
  // Keeping all of a layer saves most. More never takes less memory: found by halves.
  const auto most = [&](int64_t& field, int64_t limit_of_field) {
    int64_t low = 0, high = limit_of_field;
    while (low < high) {
      field = (low + high + 1) / 2;
      if (fits()) {
        low = field;
      } else {
        high = field - 1;
      }
    }
    field = low;
  };
  most(blocks.keep_all, s.layers);
  most(blocks.keep_attention, s.layers - blocks.keep_all);
  return blocks;
}

}  // namespace trunkline

#include "plan/step_blocks.h"

#include <algorithm>

namespace trunkline {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// What a block of scores, products or logits may take: little beside the whole, enough to keep a device busy.
constexpr int64_t kLeastBlock = 128 * kMiB, kMostBlock = 1024 * kMiB;
constexpr int64_t kBlockShare = 128;  // of the limit
constexpr int64_t kLeastQueries = 128;
// What blocks shrink to, by halves, where less does not fit.
constexpr StepBlocks kSmallest{.queries = 128, .tokens = 256, .logits = 64, .vocab_rows = 4096};
constexpr int64_t kHeadBytes = 128 * kMiB;
// Attention's backward pass has the weights and the scores' gradient at once.
constexpr int64_t kScoreCopies = 2;
// What devices let go of later than they might, as a share of all: measured. Where blocks wait for memory, they need
// not wait with that much to spare.
constexpr int64_t kLetGoLate = 64;
// What is made of a token in a layer's MLP, in the backward pass, in units of the intermediate width.
constexpr int64_t kProducts = 8;

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

// Of a layer's MLP and the norm before it; the others are attention's.
int64_t mlp_parameters(const ModelShape& s) { return 3 * s.hidden * s.intermediate + s.hidden; }

int64_t head_width(const ModelShape& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

// Values a token of a layer that keeping what attention gave adds to its input, and that keeping all does.
int64_t attention_width(const ModelShape& s) { return s.heads * s.head_dim; }
int64_t full_width(const ModelShape& s) { return head_width(s) + attention_width(s) + s.hidden + 2 * s.intermediate; }

// What is worked on in one layer's backward pass at its worst moment, beyond its input and what the forward pass kept:
// in its MLP's half or in attention's, whose gradients never exist together.
struct LayerBytes {
  int64_t blocks = 0, gradients = 0;
};

LayerBytes layer_bytes(const ModelShape& s, const StepSize& size, const StepBlocks& blocks, bool kept) {
  const int64_t tokens = size.rows * size.tokens, w = size.width, in_block = std::min(blocks.tokens, size.tokens);
  const int64_t heads = tokens * w * head_width(s), mixed = tokens * w * attention_width(s), x = tokens * w * s.hidden;
  const int64_t scores = size.makes_scores ? size.blocks_at_once * kScoreCopies * 4 * size.rows * s.heads *
                                                 std::min(blocks.queries, size.tokens) * size.tokens
                                           : 0;
  // A block's products, and a gradient on its way into the sum over blocks.
  const int64_t products = size.blocks_at_once * w * size.rows * in_block * (kProducts * s.intermediate + 4 * s.hidden);
  const int64_t weights = 3 * s.hidden * s.intermediate;
  const int64_t term = in_block == size.tokens ? 0 : w == 4 ? 4 * weights / 3 : size.blocks_at_once * w * weights;
  const int64_t forward = x + 2 * heads + mixed + scores;
  const int64_t mlp = 2 * x + (kept ? 0 : mixed) + products + term;
  // Queries, keys and values turned, and their gradients; by a kernel: its result again, sums in f32, and copies in the
  // order that it wants.
  const int64_t by_kernel = size.makes_scores ? 0 : 2 * mixed + tokens * 4 * attention_width(s);
  const int64_t sums = size.makes_scores ? tokens * (4 - w) * 2 * s.kv_heads * s.head_dim : 0;
  const int64_t attention = x + 2 * heads + mixed + sums + by_kernel + scores;
  // Of one block, they are as wide as a weight until they travel.
  const int64_t each = size.trained > 0 ? 0 : in_block == size.tokens && size.pieces_on_their_way == 0 ? w : 4;
  const int64_t of_mlp = each * mlp_parameters(s), of_attention = each * (layer_parameters(s) - mlp_parameters(s));
  LayerBytes worst{std::max(forward, mlp), of_mlp};
  if (attention + of_attention > worst.blocks + worst.gradients) worst = {attention, of_attention};
  return worst;
}

}  // namespace

StepMemory step_memory(const ModelShape& s, const StepSize& size, const StepBlocks& blocks) {
  const int64_t tokens = size.rows * size.tokens, parameters = s.parameters(), layer = layer_parameters(s);
  const int64_t w = size.width, x = tokens * w * s.hidden;
  StepMemory memory;
  const bool adapter = size.trained > 0;
  memory.weights = size.weight_bytes > 0 ? size.weight_bytes : parameters * w;
  memory.state = (adapter ? size.trained : parameters) * size.state_width;
  memory.inputs = x * s.layers;
  memory.kept = tokens * w * (blocks.keep_all * full_width(s) + blocks.keep_attention * attention_width(s));
  // The gradients of half a layer, and those that are on their way to the other ranks. A tied head's are held from the
  // head's pass to the embedding's, where they are not made in slices.
  const bool whole_head = blocks.vocab_rows >= s.vocab;
  const int64_t head = adapter ? 0 : 4 * s.hidden * std::min(blocks.vocab_rows, s.vocab);
  const int64_t always = size.pieces_on_their_way * 4 * layer / 2 + (whole_head && s.tied ? head : 0);
  const LayerBytes first = layer_bytes(s, size, blocks, blocks.keep_all > 0);
  // Once layers that kept much have let it go.
  LayerBytes later = layer_bytes(s, size, blocks, blocks.keep_all == s.layers);
  later.blocks -= blocks.keep_all * (x + tokens * w * full_width(s));
  const LayerBytes worst = later.blocks + later.gradients > first.blocks + first.gradients ? later : first;
  memory.gradients = adapter ? 4 * size.trained : size.holds_gradients ? 4 * parameters : always + worst.gradients;
  // The logits of a block in f32 and their exponentials, and both in 16 bits beside; states where targets are. Sums
  // over blocks of the head's gradient are not made in place.
  const int64_t in_block = std::min(blocks.logits, size.targets), each = w == 4 ? 8 : 8 + 2 * w;
  const int64_t head_sums = whole_head && in_block == size.targets ? head : 3 * head;
  const int64_t at_head = size.blocks_at_once * each * in_block * s.vocab + 3 * size.targets * s.hidden * w +
                          head_sums - (size.holds_gradients ? 0 : memory.gradients);
  memory.blocks = std::max({int64_t{0}, at_head, worst.blocks});
  if (size.blocks_at_once > 1) memory.blocks += memory.total() / kLetGoLate;
  return memory;
}

StepBlocks choose_blocks(const ModelShape& s, const StepSize& size, int64_t limit, const StepBlocks& asked,
                         Recompute recompute) {
  StepBlocks blocks = asked;
  const auto choose = [](int64_t& field, int64_t value) {
    if (field == 0) field = value;
  };
  const int64_t budget = std::clamp(limit / kBlockShare, kLeastBlock, kMostBlock);
  // Queries see only what is before them: in blocks, most of the other half of the scores is never made. Where blocks
  // are queued, they are far away, and few large ones are better.
  const int64_t parts = size.blocks_at_once == 1 ? 2 : 4;
  const int64_t queries = std::min(size.tokens, std::max(kLeastQueries, (size.tokens + parts - 1) / parts));
  choose(blocks.queries, block_of(budget, 4 * size.rows * s.heads * size.tokens, queries));
  choose(blocks.tokens, block_of(budget / size.blocks_at_once,
                                 size.width * size.rows * (2 * s.intermediate + head_width(s)), size.tokens));
  choose(blocks.logits, block_of(budget / size.blocks_at_once, 4 * s.vocab, std::max<int64_t>(1, size.targets)));
  const int64_t spare = size.blocks_at_once == 1 ? limit / kLetGoLate : 0;
  const auto fits = [&] { return step_memory(s, size, blocks).total() <= limit - spare; };
  // The head's gradient is whole where memory for it is not better used to keep more.
  if (blocks.vocab_rows == 0) {
    blocks.vocab_rows = s.vocab;
    blocks.keep_all = recompute == Recompute::all ? 0 : s.layers;
    if (!fits()) blocks.vocab_rows = block_of(kHeadBytes, 4 * s.hidden, s.vocab);
  }
  blocks.keep_all = blocks.keep_attention = 0;
  const auto shrink = [&](int64_t StepBlocks::*field) {
    const int64_t half = blocks.*field / 2;
    if (asked.*field != 0 || fits() || half < kSmallest.*field) return false;
    blocks.*field = half;
    return true;
  };
  const auto shrink_all = [&] {
    bool shrunk = false;
    for (const auto field : {&StepBlocks::tokens, &StepBlocks::vocab_rows, &StepBlocks::logits, &StepBlocks::queries}) {
      if (field != &StepBlocks::vocab_rows || blocks.vocab_rows < s.vocab) shrunk |= shrink(field);
    }
    return shrunk;
  };
  while (shrink_all()) {
  }
  // All tokens at once take more of products and less of gradients, which need no sums.
  StepBlocks at_once = blocks;
  at_once.tokens = size.tokens;
  if (asked.tokens == 0 && step_memory(s, size, at_once).total() <= step_memory(s, size, blocks).total())
    blocks = at_once;
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
  // Each block of logits reads the head, and adds to its gradient where that is whole: long ones, on a GPU.
  while (size.blocks_at_once == 1 && asked.logits == 0 && blocks.logits < size.targets) {
    const int64_t chosen = blocks.logits;
    blocks.logits = std::min(size.targets, 2 * chosen);
    if (fits()) continue;
    blocks.logits = chosen;
    break;
  }
  return blocks;
}

}  // namespace trunkline

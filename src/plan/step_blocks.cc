#include "plan/step_blocks.h"

#include <algorithm>
#include <functional>

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
// What devices let go of later than they might, as a share of all: measured. Where blocks wait for memory, that much is
// left free instead, so that they seldom do.
constexpr int64_t kLetGoLate = 64;
// What is made of a token in a layer's MLP, in the backward pass, in units of the intermediate width.
constexpr int64_t kProducts = 8;

// Of `all`, as much as the budget has room for at once, in as few blocks of about one size: a small last one costs more
// than its share. A multiple of 16 if there is room for one, and at least 1.
int64_t block_of(int64_t budget, int64_t bytes_each, int64_t all) {
  const int64_t fits = std::max<int64_t>(1, budget / std::max<int64_t>(1, bytes_each));
  if (fits >= all) return std::max<int64_t>(1, all);
  const int64_t unit = fits >= 16 ? 16 : 1, most = fits / unit * unit, blocks = (all + most - 1) / most;
  return ((all + blocks - 1) / blocks + unit - 1) / unit * unit;
}

int64_t head_parameters(const ModelShape& s) { return s.vocab * s.hidden; }

// Of `all` parameters.
int64_t layer_parameters(const ModelShape& s, int64_t all) {
  const int64_t heads = (s.tied ? 1 : 2) * head_parameters(s);
  return (all - heads - s.hidden) / std::max<int64_t>(1, s.layers);
}

// Of a layer's MLP and the norm before it; the others are attention's.
int64_t mlp_parameters(const ModelShape& s) { return 3 * s.hidden * s.intermediate + s.hidden; }

int64_t head_width(const ModelShape& s) { return (s.heads + 2 * s.kv_heads) * s.head_dim; }

// Values a token of a layer that keeping what attention gave adds to its input, and that keeping its products does.
int64_t attention_width(const ModelShape& s) { return s.heads * s.head_dim; }
int64_t product_width(const ModelShape& s) {
  return head_width(s) + attention_width(s) + s.hidden + 2 * s.intermediate;
}

// Values of a layer that keeping all adds to its products: attention's weights, where there are any, of each query of a
// block for the keys that any of them sees; and what the MLP's last product is made of.
int64_t all_values(const ModelShape& s, const StepSize& size, const StepBlocks& blocks) {
  const int64_t queries = std::clamp<int64_t>(blocks.queries, 1, std::max<int64_t>(1, size.tokens)),
                whole = size.tokens / queries, rest = size.tokens % queries;
  const int64_t seen = queries * queries * whole * (whole + 1) / 2 + rest * size.tokens;
  return size.rows * ((size.makes_scores ? s.heads * seen : 0) + size.tokens * s.intermediate);
}

// With what is trained reckoned, also where that is everything: counting a model's parameters takes longer than all
// that is done with their number here.
StepSize with_part(const ModelShape& s, StepSize size) {
  if (size.part) return size;
  const int64_t parameters = s.parameters(), mlp = mlp_parameters(s);
  size.part = {.parameters = parameters,
               .weight_bytes = parameters * size.width,
               .layers = s.layers,
               .mlp = mlp,
               .attention = layer_parameters(s, parameters) - mlp,
               .head = true};
  return size;
}

// What is worked on in one layer's backward pass at its worst moment, beyond its input and what the forward pass kept:
// in its MLP's half or in attention's, whose gradients never exist together.
struct LayerBytes {
  int64_t blocks = 0, gradients = 0;
  int64_t total() const { return blocks + gradients; }
};

LayerBytes layer_bytes(const ModelShape& s, const StepSize& size, const StepBlocks& blocks, bool kept) {
  const StepSize::Part& part = *size.part;
  const int64_t tokens = size.rows * size.tokens, w = size.width, in_block = std::min(blocks.tokens, size.tokens);
  const int64_t heads = tokens * w * head_width(s), mixed = tokens * w * attention_width(s), x = tokens * w * s.hidden;
  const int64_t scores = size.makes_scores ? size.blocks_at_once * kScoreCopies * 4 * size.rows * s.heads *
                                                 std::min(blocks.queries, size.tokens) * size.tokens
                                           : 0;
  // A block's products, and a gradient on its way into the sum over blocks.
  const int64_t products = size.blocks_at_once * w * size.rows * in_block * (kProducts * s.intermediate + 4 * s.hidden);
  const int64_t term = in_block == size.tokens ? 0 : w == 4 ? 4 * part.mlp / 3 : size.blocks_at_once * w * part.mlp;
  const int64_t forward = x + 2 * heads + mixed + scores;
  const int64_t mlp = 2 * x + (kept ? 0 : mixed) + products + term;
  // Queries, keys and values turned, and their gradients; by a kernel: its result again, sums in f32, and copies in the
  // order that it wants.
  const int64_t by_kernel = size.makes_scores ? 0 : 2 * mixed + tokens * 4 * attention_width(s);
  const int64_t sums = size.makes_scores ? tokens * (4 - w) * 2 * s.kv_heads * s.head_dim : 0;
  const int64_t attention = x + 2 * heads + mixed + sums + by_kernel + scores;
  // Of one block, gradients are as wide as a weight until they travel. Held ones are counted elsewhere.
  const bool narrow = in_block == size.tokens && size.pieces_on_their_way == 0;
  const int64_t each = size.holds_gradients ? 0 : narrow ? w : 4;
  const LayerBytes in_mlp{std::max(forward, mlp), each * part.mlp}, in_attention{attention, each * part.attention};
  return in_attention.total() > in_mlp.total() ? in_attention : in_mlp;
}

StepMemory memory_of(const ModelShape& s, const StepSize& size, const StepBlocks& blocks) {
  const StepSize::Part& part = *size.part;
  const int64_t tokens = size.rows * size.tokens, w = size.width, x = tokens * w * s.hidden;
  const int64_t keep_all = std::min(blocks.keep_all, part.layers),
                keep_products = std::min(blocks.keep_products, part.layers - keep_all),
                keep_attention = std::min(blocks.keep_attention, part.layers - keep_all - keep_products);
  const int64_t products = tokens * w * product_width(s), all = products + w * all_values(s, size, blocks);
  StepMemory memory;
  memory.weights = part.weight_bytes;
  memory.state = part.parameters * size.state_width;
  memory.inputs = x * part.layers;
  memory.kept = keep_all * all + keep_products * products + keep_attention * tokens * w * attention_width(s);
  // The gradients of half a layer, and those that are on their way to the other ranks, the head's maybe among them. A
  // tied head's are held from the head's pass to the embedding's, where they are not made in slices.
  const bool whole_head = blocks.vocab_rows >= s.vocab;
  const int64_t head = part.head ? 4 * s.hidden * std::min(blocks.vocab_rows, s.vocab) : 0;
  const int64_t half = 4 * std::max(part.mlp, part.attention), pieces = size.pieces_on_their_way;
  const int64_t travelling = pieces > 0 ? (pieces - 1) * half + std::max(half, head) : 0;
  const int64_t keep_much = keep_all + keep_products;
  const LayerBytes first = layer_bytes(s, size, blocks, keep_much > 0);
  // Once layers that kept much have let it go.
  LayerBytes later = layer_bytes(s, size, blocks, keep_much == part.layers);
  later.blocks -= keep_much * x + keep_all * all + keep_products * products;
  const LayerBytes worst = later.total() > first.total() ? later : first;
  memory.gradients =
      size.holds_gradients ? 4 * part.parameters : travelling + (whole_head && s.tied ? head : 0) + worst.gradients;
  // The logits of a block in f32 and their exponentials, and both in 16 bits beside; states where targets are. Sums
  // over blocks of the head's gradient are not made in place.
  const int64_t in_block = std::min(blocks.logits, size.targets), each = 4 * part.logit_copies + (w == 4 ? 0 : 2 * w);
  const int64_t head_sums = whole_head && in_block == size.targets ? head : 3 * head;
  const int64_t at_head = size.blocks_at_once * each * in_block * s.vocab + 3 * size.targets * s.hidden * w +
                          head_sums - (size.holds_gradients ? 0 : memory.gradients);
  memory.blocks = std::max({int64_t{0}, at_head, worst.blocks});
  if (size.blocks_at_once > 1) memory.blocks += memory.total() / kLetGoLate;
  return memory;
}

class Chooser {
 public:
  Chooser(const ModelShape& s, const StepSize& size, int64_t limit, const StepBlocks& asked, Recompute recompute)
      : s_(s),
        size_(with_part(s, size)),
        limit_(size.blocks_at_once == 1 ? limit - limit / kLetGoLate : limit),
        asked_(asked),
        recompute_(recompute),
        budget_(std::clamp(limit / kBlockShare, kLeastBlock, kMostBlock)),
        layers_(size_.part->layers) {}

  bool fits(const StepBlocks& blocks) const { return memory_of(s_, size_, blocks).total() <= limit_; }

  // Multiplications a token that a step makes twice.
  int64_t made_again(const StepBlocks& blocks) const {
    const int64_t second_pass = size_.part->head && blocks.vocab_rows < s_.vocab ? head_parameters(s_) : 0;
    const int64_t scores = s_.heads * s_.head_dim * size_.tokens / 2;  // of a query
    return second_pass + (layers_ - blocks.keep_all) * scores +
           (layers_ - blocks.keep_all - blocks.keep_products) * layer_parameters(s_, s_.parameters());
  }

  // With so many rows of the head at once.
  StepBlocks with(int64_t vocab_rows) const {
    StepBlocks blocks = smallest_that_fits(vocab_rows);
    const auto keep_all = [&](StepBlocks& kept, int64_t layers) {
      kept.keep_all = layers;
      kept.keep_products = layers_ - layers;
    };
    const bool rest = size_.blocks_at_once > 1;  // on a GPU what keeping the rest brings has not been measured
    if (recompute_ == Recompute::none) {
      keep_all(blocks, rest ? layers_ : 0);
    } else if (recompute_ == Recompute::automatic) {
      // Keeping a layer's products saves most for what it takes, keeping more the least.
      most(blocks, layers_, [](StepBlocks& kept, int64_t layers) { kept.keep_products = layers; });
      most(blocks, layers_ - blocks.keep_products,
           [](StepBlocks& kept, int64_t layers) { kept.keep_attention = layers; });
      if (rest && blocks.keep_products == layers_) most(blocks, layers_, keep_all);
    }
    // On a GPU, long blocks of logits: each reads the head, and adds to its gradient where that is whole.
    while (size_.blocks_at_once == 1 && asked_.logits == 0 && blocks.logits < size_.targets) {
      StepBlocks longer = blocks;
      longer.logits = std::min(size_.targets, 2 * blocks.logits);
      if (!fits(longer)) break;
      blocks = longer;
    }
    return blocks;
  }

 private:
  StepBlocks smallest_that_fits(int64_t vocab_rows) const {
    StepBlocks blocks = asked_;
    const auto choose = [](int64_t& field, int64_t value) {
      if (field == 0) field = value;
    };
    const int64_t budget = budget_ / size_.blocks_at_once, rows = size_.rows;
    // Queries see only what is before them: in blocks, most of the other half of the scores is never made. A GPU is
    // kept busy by fewer, larger ones.
    const int64_t parts = size_.blocks_at_once == 1 ? 2 : 4;
    const int64_t queries = std::max(kLeastQueries, (size_.tokens + parts - 1) / parts + 15) / 16 * 16;
    const int64_t scores = 4 * rows * s_.heads * size_.tokens;  // of a query
    choose(blocks.queries, block_of(std::min(budget_, queries * scores), scores, size_.tokens));
    choose(blocks.tokens, block_of(budget, size_.width * rows * (2 * s_.intermediate + head_width(s_)), size_.tokens));
    choose(blocks.logits, block_of(budget_, 4 * s_.vocab, std::max<int64_t>(1, size_.targets)));
    choose(blocks.vocab_rows, vocab_rows);
    blocks.keep_all = blocks.keep_products = blocks.keep_attention = 0;
    const auto shrink = [&](int64_t StepBlocks::*field) {
      const int64_t half = blocks.*field / 2;
      if (asked_.*field != 0 || fits(blocks) || half < kSmallest.*field) return false;
      blocks.*field = half;
      return true;
    };
    const auto shrink_all = [&] {
      bool shrunk = false;
      for (const auto field :
           {&StepBlocks::tokens, &StepBlocks::vocab_rows, &StepBlocks::logits, &StepBlocks::queries}) {
        if (field != &StepBlocks::vocab_rows || blocks.vocab_rows < s_.vocab) shrunk |= shrink(field);
      }
      return shrunk;
    };
    while (shrink_all()) {
    }
    // All tokens at once take more of products and less of gradients, which need no sums.
    StepBlocks at_once = blocks;
    at_once.tokens = size_.tokens;
    const auto in_layer = [&](const StepBlocks& cut) {
      return layer_bytes(s_, size_, cut, /* kept = */ false).total();
    };
    if (asked_.tokens == 0 && in_layer(at_once) <= in_layer(blocks)) {
      return at_once;
    }
    return blocks;
  }

  // As many layers as fit, found by halves: more never take less memory.
  void most(StepBlocks& blocks, int64_t limit, const std::function<void(StepBlocks&, int64_t)>& keep) const {
    int64_t low = 0, high = limit;
    while (low < high) {
      const int64_t layers = (low + high + 1) / 2;
      keep(blocks, layers);
      if (fits(blocks)) {
        low = layers;
      } else {
        high = layers - 1;
      }
    }
    keep(blocks, low);
  }

  const ModelShape& s_;
  const StepSize size_;
  const int64_t limit_;
  const StepBlocks& asked_;
  const Recompute recompute_;
  const int64_t budget_, layers_;
};

}  // namespace

StepMemory step_memory(const ModelShape& s, const StepSize& size, const StepBlocks& blocks) {
  return memory_of(s, with_part(s, size), blocks);
}

StepBlocks choose_blocks(const ModelShape& s, const StepSize& size, int64_t limit, const StepBlocks& asked,
                         Recompute recompute) {
  const Chooser chooser(s, size, limit, asked, recompute);
  const StepBlocks whole = chooser.with(s.vocab);
  if (asked.vocab_rows != 0) return whole;
  const StepBlocks sliced = chooser.with(block_of(kHeadBytes, 4 * s.hidden, s.vocab));
  // On a GPU, adding block after block to a whole one takes as long as a second pass.
  const bool adds = size.blocks_at_once == 1 && whole.logits < size.targets;
  if (adds || !chooser.fits(whole)) return sliced;
  return chooser.made_again(sliced) < chooser.made_again(whole) ? sliced : whole;
}

}  // namespace trunkline

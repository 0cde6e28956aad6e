#include "train/step.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <list>
#include <utility>
#include <vector>

#include "base/fail.h"
#include "bridge/arrays.h"
#include "model/attention.h"
#include "model/backend.h"
#include "train/clip.h"
#include "train/layerwise.h"
#include "train/loss.h"
#include "train/together.h"
#include "train/update.h"

namespace trunkline {
namespace {

using Track = Timeline::Track;

Batch batch_of(const StepContext& context, int64_t number, const MicroBatch& indices) {
  std::vector<std::vector<RowView>> found;
  for (const int64_t index : indices) found.push_back(context.rows.rows(index));
  Batch batch = make_batch(found);
  if (context.dropout > 0.0) {
    uint32_t salt = mixed(static_cast<uint32_t>(number));
    for (const uint64_t word : {context.seed, context.seed >> 32}) salt = mixed(salt + static_cast<uint32_t>(word));
    batch.dropout.emplace(context.dropout, mx::bitwise_xor(*batch.keys, mx::array(salt, mx::uint32)));
  }
  return batch;
}

struct Sums {
  double loss = 0.0;
  std::vector<mx::array> gradients;  // parallel to the trained tensors
};

// This rank's sums over its micro-batches, each as one graph. A loss that is not finite ends them: no backward pass is
// run on it.
Sums compute_whole(const StepContext& context, int64_t number, std::span<const MicroBatch> mine) {
  Sums sums;
  for (const MicroBatch& micro_batch : mine) {
    auto [loss, gradients] = loss_and_gradients(context.decoder, context.parameters, context.trained,
                                                batch_of(context, number, micro_batch));
    sums.loss += loss.item<float>();
    if (!std::isfinite(sums.loss)) return sums;
    for (mx::array& gradient : gradients) {
      gradient = mx::astype(std::exchange(gradient, mx::array(0.0f)), mx::float32);
    }
    if (sums.gradients.empty()) {
      sums.gradients = std::move(gradients);
    } else {
      for (size_t i = 0; i < gradients.size(); ++i) {
        sums.gradients[i] = mx::add(std::exchange(sums.gradients[i], mx::array(0.0f)), gradients[i]);
      }
    }
    gradients.clear();
    mx::eval(sums.gradients);
  }
  if (sums.gradients.empty()) {
    for (const size_t i : context.trained.tensors())
      sums.gradients.push_back(mx::zeros(context.parameters[i].shape(), mx::float32));
  }
  return sums;
}

// The loss over all ranks. Throws if some rank's is not finite.
double agree_on_loss(const StepContext& context, int64_t number, double mine) {
  double total = 0.0;
  const auto losses = gather_values(context.group, {mine});
  for (size_t rank = 0; rank < losses.size(); ++rank) {
    total += losses[rank][0];
    if (std::isfinite(losses[rank][0])) continue;
    // None of them ends, and the group with it, before the others know why.
    together(context.group, [&] {
      const auto weight = first_not_finite(context.parameters);
      fail(ErrorKind::numeric, "step {}: the loss is not finite ({}, on rank {}){}; nothing was updated", number,
           losses[rank][0], rank,
           weight ? fmt::format("; neither is the tensor {}", context.decoder.layout()[*weight].name) : "");
    });
  }
  return total;
}

// Whether the next value is a spike, for all ranks alike.
bool is_spike(const StepContext& context, SpikeWatch* watch, double value) {
  if (watch == nullptr) return false;
  int64_t spike = watch->take(value) ? 1 : 0;
  context.group.all_max(&spike, &spike, 1, Dtype::i64);
  return spike != 0;
}

// Whether the step's loss is a spike: it then ends without an update.
bool ends_with_loss(const StepContext& context, double learning_rate, StepResult& result) {
  if (!is_spike(context, context.losses, result.loss / static_cast<double>(result.targets))) return false;
  result.spike = StepResult::Spike::loss;
  result.grad_norm = std::numeric_limits<double>::quiet_NaN();
  context.optimizer.begin_step(learning_rate);  // it counts steps, updated or not
  return true;
}

UpdateOptions update_options(const StepContext& context, double learning_rate) {
  UpdateOptions options{.learning_rate = learning_rate,
                        .max_grad_norm = context.max_grad_norm,
                        .hold = context.hold_gradients || context.whole_graph,
                        .group = &context.group};
  if (context.sharded != nullptr) options.shards = &context.sharded->shards();
  if (context.grad_norms != nullptr) {
    options.refuses = [&context](double norm) { return is_spike(context, context.grad_norms, norm); };
  }
  return options;
}

void finish_update(Update& update, StepResult& result) {
  result.grad_norm = update.finish();
  if (update.refused()) result.spike = StepResult::Spike::grad_norm;
}

// The reference: all of it at once, sums after the backward pass.
void whole_graph_step(StepContext& context, int64_t number, std::span<const MicroBatch> mine, double learning_rate,
                      StepResult& result) {
  Sums sums;
  const auto start = Clock::now();
  together(context.group, [&] { sums = compute_whole(context, number, mine); });
  context.timeline.add(Track::backward, "forward and backward", start);
  result.loss = agree_on_loss(context, number, sums.loss);
  if (ends_with_loss(context, learning_rate, result)) return;
  {
    const Timeline::Span communication(context.timeline, Track::communication, "sum of all"),
        exposed(context.timeline, Track::exposed, "waiting for sums");
    all_sum(context.group, sums.gradients);
  }
  Update update(context.decoder, context.parameters, context.optimizer, context.timeline, number, result.targets,
                update_options(context, learning_rate));
  for (size_t i = 0; i < sums.gradients.size(); ++i) {
    const size_t tensor = context.trained.tensors()[i];
    const Piece piece{.name = context.decoder.layout()[tensor].name, .rows = {{tensor, 0, sums.gradients[i].shape(0)}}};
    update.take(piece, {std::exchange(sums.gradients[i], mx::array(0.0f))});
  }
  finish_update(update, result);
}

StepSize size_of(const StepContext& context, const Batch& batch) {
  return size_of(context, batch.ids.shape(0), batch.ids.shape(1), batch.target_count);
}

// Of micro-batches whose backward pass is one: what all of them keep is there at once. It is chosen for as many
// positions in rows as long as the longest, and no block is larger than that choice's.
std::vector<StepBlocks> blocks_for(const StepContext& context, std::span<const Batch> batches) {
  std::vector<StepBlocks> blocks;
  for (const Batch& batch : batches) blocks.push_back(blocks_for(context, size_of(context, batch)));
  if (batches.size() == 1) return blocks;
  int64_t positions = 0, targets = 0, longest = 1;
  for (const Batch& batch : batches) {
    positions += static_cast<int64_t>(batch.ids.size());
    targets += batch.target_count;
    longest = std::max<int64_t>(longest, batch.ids.shape(1));
  }
  const int64_t rows = (positions + longest - 1) / longest;
  const StepBlocks all = blocks_for(context, size_of(context, rows, longest, targets));
  for (size_t i = 0; i < batches.size(); ++i) {
    const int64_t rows_here = batches[i].ids.shape(0), tokens_here = batches[i].ids.shape(1);
    const auto at_most = [](int64_t size, int64_t most) { return std::min(size, std::max<int64_t>(1, most)); };
    if (context.blocks.queries == 0) {
      blocks[i].queries = at_most(blocks[i].queries, all.queries * rows * longest / (rows_here * tokens_here));
    }
    if (context.blocks.tokens == 0) blocks[i].tokens = at_most(blocks[i].tokens, all.tokens * rows / rows_here);
    if (context.blocks.logits == 0) blocks[i].logits = at_most(blocks[i].logits, all.logits);
    blocks[i].keep_all = all.keep_all;
    blocks[i].keep_products = all.keep_products;
    blocks[i].keep_attention = all.keep_attention;
  }
  return blocks;
}

// Gradients of micro-batches but the last, piece by piece.
class Accumulated {
 public:
  // Adds them to `gradients`, or takes these.
  void add(size_t piece, std::vector<mx::array>& gradients) {
    if (piece >= sums_.size()) return;
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = mx::add(std::exchange(gradients[i], mx::array(0.0f)), sums_[piece][i]);
    }
    sums_[piece].clear();
    mx::eval(gradients);
  }
  void keep(size_t piece, std::vector<mx::array> gradients) {
    if (piece == sums_.size()) sums_.emplace_back();
    for (mx::array& gradient : gradients) gradient = mx::astype(std::exchange(gradient, mx::array(0.0f)), mx::float32);
    mx::eval(gradients);
    sums_[piece] = std::move(gradients);
  }

 private:
  std::vector<std::vector<mx::array>> sums_;
};

class LayerwiseStep {
 public:
  LayerwiseStep(StepContext& context, int64_t number, std::span<const MicroBatch> mine, StepResult& result)
      : context_(context), number_(number), mine_(mine), result_(result) {}

  void run(double learning_rate) {
    double loss = 0.0;
    together(context_.group, [&] { loss = run_to_last_backward(); });
    result_.loss = agree_on_loss(context_, number_, loss);
    if (ends_with_loss(context_, learning_rate, result_)) return;
    Parameters& updated = context_.sharded != nullptr ? context_.sharded->own() : context_.parameters;
    Update update(context_.decoder, updated, context_.optimizer, context_.timeline, number_, result_.targets,
                  update_options(context_, learning_rate));
    GradientExchange exchange(
        context_.group, context_.exchange, context_.timeline,
        [&](const Piece& piece, std::vector<mx::array> gradients) { update.take(piece, std::move(gradients)); });
    try {
      backward([&](size_t piece, const Piece& rows, std::vector<mx::array> gradients) {
        accumulated_.add(piece, gradients);
        exchange.submit(rows, std::move(gradients));
      });
      exchange.finish();
    } catch (const std::exception& error) {
      context_.group.abort(error.what());  // the exchange's thread ends its wait
      throw;
    }
    finish_update(update, result_);
    if (context_.sharded != nullptr) context_.sharded->changed();
  }

 private:
  using Numbered = std::function<void(size_t, const Piece&, std::vector<mx::array>)>;

  // A micro-batch on its way through the model.
  struct Part {
    Part(const StepContext& context, Batch made, const StepBlocks& blocks)
        : batch(std::move(made)), pass(context.decoder, context.parameters, context.trained, batch, blocks, [&context] {
            context.group.advance();
          }) {}
    const Batch batch;
    LayerwisePass pass;
  };

  // All but the last backward pass. Where gradients are accumulated each micro-batch has one of its own, else there is
  // one of all together, and no gradient is held. Ends early at a loss that is not finite.
  double run_to_last_backward() {
    double loss = 0.0;
    const size_t together = context_.accumulates ? 1 : std::max<size_t>(1, mine_.size());
    for (size_t i = 0; i < mine_.size(); i += together) {
      loss += forward(mine_.subspan(i, together));
      if (!std::isfinite(loss) || i + together == mine_.size()) break;
      backward([&](size_t piece, const Piece&, std::vector<mx::array> gradients) {
        accumulated_.add(piece, gradients);
        accumulated_.keep(piece, std::move(gradients));
      });
    }
    if (context_.sharded != nullptr) context_.sharded->finish();  // where no forward pass waited for them
    return loss;
  }

  double forward(std::span<const MicroBatch> micro_batches) {
    std::vector<Batch> batches;
    for (const MicroBatch& micro_batch : micro_batches) batches.push_back(batch_of(context_, number_, micro_batch));
    const std::vector<StepBlocks> blocks = blocks_for(context_, batches);
    double loss = 0.0;
    for (size_t i = 0; i < batches.size() && std::isfinite(loss); ++i) {
      parts_.emplace_back(context_, std::move(batches[i]), blocks[i]);
      if (i > 0) parts_.back().pass.go_on_from(std::prev(parts_.end(), 2)->pass);
      loss += forward(parts_.back().pass);
    }
    result_.blocks = blocks.back();
    return loss;
  }

  double forward(LayerwisePass& pass) {
    Clock::duration waited{};
    if (context_.sharded != nullptr) {
      pass.before_layer([&](int64_t layer) {
        const auto start = Clock::now();
        context_.sharded->wait_for(layer);
        const auto end = Clock::now();
        context_.timeline.add(Track::exposed, "waiting for weights", start, end);
        waited += end - start;
      });
    }
    const auto start = Clock::now();
    const double loss = pass.forward();
    context_.timeline.add(Track::forward, "forward", start + waited);  // its length is that of the computation
    return loss;
  }

  // Of the newest micro-batches, or zeros where there are none.
  void backward(const Numbered& hand_over) {
    size_t number = 0;
    auto start = Clock::now();
    const HandOver take = [&](const Piece& piece, std::vector<mx::array> gradients) {
      context_.timeline.add(Track::backward, "backward of " + piece.name, start);
      hand_over(number++, piece, std::move(gradients));
      start = Clock::now();
    };
    if (parts_.empty()) hand_over_zeros(context_.decoder, context_.trained, context_.blocks.vocab_rows, take);
    for (const Piece& piece : pieces_of(context_.decoder, context_.trained, context_.blocks.vocab_rows)) {
      if (parts_.empty()) break;
      std::vector<mx::array> gradients;
      for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
        gradients = part->pass.gradients_of(piece, std::move(gradients));
      }
      take(piece, std::move(gradients));
    }
    parts_.clear();
  }

  StepContext& context_;
  const int64_t number_;
  const std::span<const MicroBatch> mine_;
  StepResult& result_;
  std::list<Part> parts_;
  Accumulated accumulated_;
};

void set_times(const Timeline& timeline, StepResult& result) {
  result.forward_s = timeline.seconds(Track::forward);
  result.backward_s = timeline.seconds(Track::backward);
  result.exposed_s = timeline.seconds(Track::exposed);
  result.update_s = timeline.seconds(Track::update);
  result.communication_s = timeline.seconds(Track::communication);
  result.hidden = timeline.hidden_share();
}

}  // namespace

StepSize size_of(const StepContext& context, int64_t rows, int64_t tokens, int64_t targets) {
  const bool after = context.exchange.sync == Sync::after && context.group.size() > 1;
  const mx::Dtype dtype = context.parameters[static_cast<size_t>(context.decoder.norm_index())].dtype();
  StepSize size = context.weights;
  size.rows = rows;
  size.tokens = tokens;
  size.targets = targets;
  size.holds_gradients = context.hold_gradients || after;
  size.pieces_on_their_way = context.group.size() > 1 ? 2 : 0;
  size.makes_scores = attention_makes_scores(dtype, static_cast<int>(context.decoder.shape().head_dim));
  size.blocks_at_once = blocks_at_once();
  return size;
}

StepBlocks blocks_for(const StepContext& context, const StepSize& size) {
  const auto choose = [&](int64_t limit, const StepBlocks& asked) {
    return choose_blocks(context.decoder.shape(), size, limit, asked, context.recompute);
  };
  const StepBlocks blocks = choose(context.limit_for_sizes, context.blocks);
  return context.limit_for_sizes == context.memory_limit ? blocks : choose(context.memory_limit, blocks);
}

StepResult run_step(StepContext& context, int64_t number, std::span<const MicroBatch> mine, double learning_rate,
                    bool stop_wish) {
  int64_t counts[3] = {0, 0, stop_wish ? 1 : 0};  // targets, tokens, wishes to stop
  for (const MicroBatch& micro_batch : mine) {
    for (const int64_t index : micro_batch) {
      counts[0] += context.rows.targets(index);
      counts[1] += context.rows.length(index);
    }
  }
  context.group.all_sum(counts, counts, 3, Dtype::i64);
  StepResult result;
  result.targets = counts[0];
  result.tokens = counts[1];
  result.stop = counts[2] > 0;
  if (result.targets == 0) fail(ErrorKind::input, "step {}: no row has a target", number);
  context.timeline.reset();
  if (context.sharded != nullptr) context.sharded->start(context.parameters);
  if (context.whole_graph) {
    whole_graph_step(context, number, mine, learning_rate, result);
  } else {
    LayerwiseStep(context, number, mine, result).run(learning_rate);
  }
  result.loss /= static_cast<double>(result.targets);
  set_times(context.timeline, result);
  return result;
}

}  // namespace trunkline

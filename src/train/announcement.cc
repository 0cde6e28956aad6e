#include "train/announcement.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "model/backend.h"
#include "plan/least_limit.h"

namespace trunkline {

std::string describe(const Sequences& sequences) {
  const DataSummary& summary = sequences.dataset().summary();
  std::string text = fmt::format("{}: {} rows, {} tokens, {} of them targets", summary.file, summary.rows,
                                 summary.tokens, summary.targets);
  if (summary.truncated > 0) text += fmt::format("; {} truncated to max_seq_length", summary.truncated);
  if (const int64_t cut = summary.skipped - summary.untargeted; cut > 0) {
    text += fmt::format("; {} skipped (no target within max_seq_length)", cut);
  }
  if (summary.untargeted > 0) text += fmt::format("; {} skipped (no target at all)", summary.untargeted);
  if (summary.blank > 0) text += fmt::format("; {} blank line{} skipped", summary.blank, summary.blank == 1 ? "" : "s");
  if (sequences.count() < summary.rows) {
    text += fmt::format("; packed into {} sequences, {:.1f} tokens each", sequences.count(),
                        static_cast<double>(summary.tokens) / static_cast<double>(sequences.count()));
  }
  return text;
}

namespace {

int64_t parameters_of(const std::vector<TensorShape>& layout) {
  int64_t size = 0;
  for (const TensorShape& tensor : layout) {
    size += std::accumulate(tensor.dims.begin(), tensor.dims.end(), int64_t{1}, std::multiplies<>());
  }
  return size;
}

double percent(int64_t part, int64_t whole) { return 100.0 * static_cast<double>(part) / static_cast<double>(whole); }

}  // namespace

std::string describe(const AdapterShape& adapter, const ModelShape& shape) {
  const int64_t trained = parameters_of(tensor_shapes(adapter));
  int64_t low = INT64_MAX, high = 0;
  for (const AdaptedModule& module : adapter.modules) {
    low = std::min(low, module.rank);
    high = std::max(high, module.rank);
  }
  const int64_t all = shape.parameters();
  return fmt::format("{} of {} modules, rank {}{}: {} parameters trained, {:.3f} % of the {} that are frozen,",
                     adapter.dora ? "DoRA" : "LoRA", adapter.modules.size(), low,
                     low == high ? "" : fmt::format(" to {}", high), trained, percent(trained, all), all);
}

std::string describe(const Trained& trained, const Decoder& decoder) {
  const int64_t all = parameters_of(decoder.layout()), count = parameters_of(trained.of(decoder.layout()));
  if (count == all) return fmt::format("full fine-tuning of {} parameters", all);
  int64_t layers = 0;
  for (int64_t layer = 0; layer < decoder.shape().layers; ++layer) {
    if (trained[static_cast<size_t>(decoder.layer_tensors(layer).front())]) ++layers;
  }
  return fmt::format("full fine-tuning of the last {} of {} layers: {} parameters trained, {:.3f} % of {},", layers,
                     decoder.shape().layers, count, percent(count, all), all);
}

std::vector<std::string> describe_ranks(const TrainOptions& options, int ranks) {
  std::vector<std::string> lines;
  if (options.shard_optimizer) {
    lines.push_back(
        ranks == 1 ? "shard_optimizer does nothing on one rank"
                   : fmt::format("each rank has one of {} parts of the optimizer's state (shard_optimizer)", ranks));
  }
  if (options.wire_dtype != Dtype::f32) {
    lines.push_back(
        ranks == 1 ? fmt::format("wire_dtype {} does nothing on one rank", name_of(options.wire_dtype))
                   : fmt::format("gradients travel between ranks as {} (wire_dtype)", name_of(options.wire_dtype)));
  }
  if (options.dtype == Dtype::bf16 && computes_on_cpu()) {
    lines.push_back("warning: on the processor, bfloat16 is many times slower than float32");
  }
  return lines;
}

std::vector<std::string> describe_step(const StepContext& context, const StepSize& largest) {
  if (context.whole_graph) return {"each micro-batch is one graph, and all gradients are held: the reference"};
  const StepBlocks blocks = blocks_for(context, largest);
  const StepMemory forecast = step_memory(context.decoder.shape(), largest, blocks);
  std::vector<std::string> lines = {
      fmt::format("layer by layer; {} rows of {} tokens in blocks of {} queries, {} tokens, {} logits and {} rows of "
                  "the head; {} of {} layers keep all, {} their products, {} what attention gave",
                  largest.rows, largest.tokens, blocks.queries, blocks.tokens, blocks.logits, blocks.vocab_rows,
                  blocks.keep_all, context.decoder.shape().layers, blocks.keep_products, blocks.keep_attention),
      fmt::format("memory forecast: {}, of at most {}", memory_text(forecast.total()),
                  memory_text(context.memory_limit))};
  if (!context.hold_gradients) {
    lines.push_back("each layer is updated as soon as its gradients are summed");
  } else {
    lines.push_back(fmt::format("gradients are held until all have been checked{}",
                                context.max_grad_norm > 0.0     ? " (clipping by the global norm needs all of them)"
                                : context.grad_norms != nullptr ? " (a spike of their norm shows in all of them)"
                                : context.accumulates           ? " (accumulation needs all of them)"
                                                                : ""));
  }
  return lines;
}

}  // namespace trunkline

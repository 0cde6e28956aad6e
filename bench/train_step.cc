// How fast a training step of one rank is, and what memory it takes, for a model's shape with random weights and
// tokens:
//
//   bench_train_step CONFIG.json [--rows N] [--tokens N] [--steps N] [--optimizer sgd|adamw] [--dtype float32|bfloat16]
//                    [--recompute auto|all|none] [--memory-limit GIB] [--query-block N] [--token-block N]
//                    [--loss-block N] [--vocab-slice N] [--hold-gradients] [--whole-graph] [--master-weights]
//
// One JSON object a line and step. Memory is MLX's allocator's peak since the weights were there, what the device has
// taken (0: it does not tell) and the process's peak, in GiB; forecast: src/plan's.
#include <mlx/mlx.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/fail.h"
#include "base/memory.h"
#include "model/backend.h"
#include "train/layerwise.h"
#include "train/loss.h"
#include "train/random_model.h"
#include "train/update.h"

namespace trunkline {
namespace {

constexpr uint64_t kWeightsSeed = 1, kRowsSeed = 2;

struct Options {
  std::string config, optimizer = "sgd", dtype = "float32", recompute = "auto";
  int rows = 1, tokens = 2048, steps = 3;
  double memory_limit = 0.0;
  StepBlocks blocks;
  bool hold = false, whole_graph = false, masters = false, peaks = false;
};

double gib(double bytes) { return bytes / static_cast<double>(int64_t{1} << 30); }

void run(const Options& options) {
  const auto limit = options.memory_limit > 0.0 ? static_cast<int64_t>(options.memory_limit * (int64_t{1} << 30))
                                                : device_memory() / 5 * 4;
  bound_memory(limit);
  const Decoder decoder(read_model_shape(options.config));
  const mx::Dtype dtype = options.dtype == "bfloat16" ? mx::bfloat16 : mx::float32;
  OptimizerOptions optimizer_options;
  if (options.optimizer == "sgd") optimizer_options = {.kind = OptimizerOptions::Kind::sgd, .weight_decay = 0.0};
  Parameters parameters = random_weights(decoder, dtype, kWeightsSeed);
  const Trained trained = Trained::all(decoder.layout().size());
  Optimizer optimizer(optimizer_options, decoder.layout(), trained);
  if (options.masters) {
    Parameters weights;
    for (const mx::array& parameter : parameters) {
      weights.push_back(mx::astype(parameter, mx::float32));
      weights.back().eval();
    }
    optimizer.keep_masters(weights);
  }
  const Batch batch = random_batch(options.rows, options.tokens, decoder.shape().vocab, kRowsSeed);
  const StepSize size{.rows = options.rows,
                      .tokens = options.tokens,
                      .targets = batch.target_count,
                      .width = static_cast<int64_t>(mx::size_of(dtype)),
                      .state_width = optimizer.state_bytes(),
                      .holds_gradients = options.hold,
                      .pieces_on_their_way = 0,
                      .makes_scores = attention_makes_scores(dtype, static_cast<int>(decoder.shape().head_dim)),
                      .blocks_at_once = blocks_at_once()};
  const Recompute recompute = options.recompute == "all"    ? Recompute::all
                              : options.recompute == "none" ? Recompute::none
                                                            : Recompute::automatic;
  const StepBlocks blocks = choose_blocks(decoder.shape(), size, limit, options.blocks, recompute);
  std::fprintf(stderr,
               "%s; blocks: queries %ld tokens %ld logits %ld vocab_rows %ld keep_all %ld keep_products %ld "
               "keep_attention %ld\n",
               describe_backend().c_str(), static_cast<long>(blocks.queries), static_cast<long>(blocks.tokens),
               static_cast<long>(blocks.logits), static_cast<long>(blocks.vocab_rows),
               static_cast<long>(blocks.keep_all), static_cast<long>(blocks.keep_products),
               static_cast<long>(blocks.keep_attention));
  Timeline timeline;
  mx::clear_cache();
  mx::reset_peak_memory();
  for (int step = 1; step <= options.steps; ++step) {
    timeline.reset();
    const auto start = Clock::now();
    Update update(decoder, parameters, optimizer, timeline, step, batch.target_count,
                  {.learning_rate = 1e-6, .hold = options.hold || options.whole_graph});
    double loss = 0.0, forward_s = 0.0;
    if (options.whole_graph) {
      LossAndGradients whole = loss_and_gradients(decoder, parameters, trained, batch);
      loss = whole.loss.item<float>();
      forward_s = seconds_since(start);
      mx::eval(whole.gradients);
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        const int rows = whole.gradients[i].shape(0);
        update.take({decoder.layout()[i].name, {{i, 0, rows}}}, {std::exchange(whole.gradients[i], mx::array(0.0f))});
      }
    } else {
      const bool shown = options.peaks && step == options.steps;
      const auto peak = [&] {
        if (!shown) return;
        std::fprintf(stderr, " %.2f", gib(static_cast<double>(mx::get_peak_memory())));
        mx::reset_peak_memory();
      };
      LayerwisePass pass(decoder, parameters, trained, batch, blocks, peak);
      loss = pass.forward();
      forward_s = seconds_since(start);
      pass.backward([&](const Piece& piece, std::vector<mx::array> gradients) {
        if (shown) std::fprintf(stderr, "\n%s:", piece.name.c_str());
        update.take(piece, std::move(gradients));
      });
    }
    update.finish();
    const double seconds = seconds_since(start);
    const nlohmann::ordered_json line = {
        {"step", step},
        {"seconds", seconds},
        {"forward_s", forward_s},
        {"update_s", timeline.seconds(Timeline::Track::update)},
        {"tokens_per_s", options.rows * options.tokens / seconds},
        {"loss", loss / static_cast<double>(batch.target_count)},
        {"mlx_peak_gib", gib(static_cast<double>(mx::get_peak_memory()))},
        {"device_gib", gib(static_cast<double>(device_memory_taken().value_or(0)))},
        {"process_peak_gib", gib(static_cast<double>(process_memory().peak))},
        {"forecast_gib", gib(static_cast<double>(step_memory(decoder.shape(), size, blocks).total()))}};
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace trunkline

int main(int argc, char** argv) {
  using namespace trunkline;
  Options options;
  CLI::App app("How fast a training step is, and what memory it takes");
  app.add_option("config", options.config, "config.json of the model's shape")->required();
  app.add_option("--rows", options.rows);
  app.add_option("--tokens", options.tokens, "of each row");
  app.add_option("--steps", options.steps);
  app.add_option("--optimizer", options.optimizer)->check(CLI::IsMember({"sgd", "adamw"}));
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--recompute", options.recompute)->check(CLI::IsMember({"auto", "all", "none"}));
  app.add_option("--memory-limit", options.memory_limit, "GiB");
  app.add_option("--query-block", options.blocks.queries);
  app.add_option("--token-block", options.blocks.tokens);
  app.add_option("--loss-block", options.blocks.logits);
  app.add_option("--vocab-slice", options.blocks.vocab_rows);
  app.add_flag("--hold-gradients", options.hold);
  app.add_flag("--peaks", options.peaks, "of the last step: the peak of each block");
  app.add_flag("--master-weights", options.masters, "f32 masters beside bfloat16");
  app.add_flag("--whole-graph", options.whole_graph, "the reference: one graph");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_train_step: %s\n", error.what());
    return 1;
  }
  return 0;
}

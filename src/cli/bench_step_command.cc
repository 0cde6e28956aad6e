// The command line of `trunkline bench step`, and what it tells.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <memory>

#include "base/fail.h"
#include "base/settings.h"
#include "base/version.h"
#include "cli/bench_figures.h"
#include "cli/bench_report.h"
#include "cli/bench_step.h"
#include "cli/command.h"
#include "cli/group_flags.h"
#include "cli/tell_others.h"

namespace trunkline {
namespace {

struct Flags {
  int64_t layers = 0;
  double forward_ms = 0.0, backward_ms = 0.0, update_ms = 0.0;
  std::string gradient_bytes, head_bytes = "0", embedding_bytes = "0";
  std::string config;
  ModelWork model;
  std::string sync = "overlap", wire = "float32";
  bool busy_wait = false, check = false;
  int iterations = 5, warmup = 1;
  GroupFlags group;
  std::string json, trace;
};

void add_flags(CLI::App& app, Flags& flags) {
  const auto time = number_between(0.0, 1e7);
  auto* layers = app.add_option("--layers", flags.layers, "Layers; each one's gradients are seven tensors")
                     ->check(CLI::Range(1, 10'000))
                     ->type_name("N");
  auto* forward = app.add_option("--forward-ms", flags.forward_ms, "Emulated computation: the forward pass")
                      ->check(time)
                      ->type_name("MS");
  auto* backward = app.add_option("--backward-ms", flags.backward_ms, "The backward pass, shared by bytes")
                       ->check(time)
                       ->type_name("MS");
  auto* update =
      app.add_option("--update-ms", flags.update_ms, "The update, shared by bytes")->check(time)->type_name("MS");
  auto* bytes =
      app.add_option("--gradient-bytes", flags.gradient_bytes, "Of all gradients of a step, f32; units K, M, G")
          ->check(check_size)
          ->type_name("SIZE");
  app.add_option("--head-bytes", flags.head_bytes, "Of them, the head's, which go first (0)")
      ->check(check_size)
      ->type_name("SIZE");
  app.add_option("--embedding-bytes", flags.embedding_bytes, "Of them, the embedding's, which go last (0)")
      ->check(check_size)
      ->type_name("SIZE");
  auto* config = app.add_option("--model", flags.config,
                                "Real computation instead: a config.json; random weights of its shape, on MLX")
                     ->check(CLI::ExistingFile)
                     ->type_name("FILE");
  for (CLI::Option* emulated : {layers, forward, backward, update, bytes}) config->excludes(emulated);
  app.add_option("--rows", flags.model.rows, "Of --model's batch on each rank (1)")
      ->check(CLI::Range(1, 1 << 20))
      ->needs(config)
      ->type_name("N");
  app.add_option("--tokens", flags.model.tokens, "Of each of its rows (256)")
      ->check(CLI::Range(2, 1 << 24))
      ->needs(config)
      ->type_name("N");
  app.add_flag("--shard-optimizer", flags.model.shard_optimizer,
               "Each rank updates its part of --model's weights; they are gathered behind the next forward pass")
      ->needs(config);
  app.add_option("--sync", flags.sync,
                 "Sums over ranks: overlap, the default, while the backward pass goes on; after it; none: each rank "
                 "computes by itself")
      ->check(CLI::IsMember({"overlap", "after", "none"}))
      ->type_name("WHEN");
  app.add_option("--wire-dtype", flags.wire, "As what gradients travel: float32, bfloat16 (f32, bf16 too)")
      ->check(CLI::IsMember({"float32", "bfloat16", "f32", "bf16"}))
      ->type_name("DTYPE");
  app.add_flag("--busy-wait", flags.busy_wait, "Spin while waiting for sums");
  app.add_option("-n,--iters", flags.iterations, "Timed steps (5)")->check(CLI::Range(1, 1'000'000))->type_name("N");
  app.add_option("-w,--warmup_iters,--warmup", flags.warmup, "Steps before them, without the timer (1)")
      ->check(CLI::Range(0, 1'000'000))
      ->type_name("N");
  app.add_flag("--check", flags.check,
               "Verify every sum on every rank, within the timed update; of --model, that the ranks' weights are the "
               "same; exit 1 if not");
  flags.group.add(app);
  app.add_option("--json", flags.json, "Rank 0 writes an object there")->check(check_file)->type_name("FILE");
  app.add_option("--trace", flags.trace, "Rank 0 writes its timeline there, for chrome://tracing or Perfetto")
      ->check(check_file)
      ->type_name("FILE");
}

EmulatedWork emulated_from(const Flags& flags) {
  if (flags.layers == 0 || flags.gradient_bytes.empty()) {
    refuse("--layers and --gradient-bytes are needed, or --model for real computation");
  }
  const auto bytes = [](const std::string& text) { return static_cast<int64_t>(*size_from(text)); };
  const EmulatedWork work{.layers = flags.layers,
                          .forward_s = flags.forward_ms * 1e-3,
                          .backward_s = flags.backward_ms * 1e-3,
                          .update_s = flags.update_ms * 1e-3,
                          .gradient_bytes = bytes(flags.gradient_bytes),
                          .head_bytes = bytes(flags.head_bytes),
                          .embedding_bytes = bytes(flags.embedding_bytes)};
  if (work.gradient_bytes > int64_t{1} << 42) refuse("--gradient-bytes is more than 4 TiB");
  if (work.head_bytes + work.embedding_bytes > work.gradient_bytes) {
    refuse(fmt::format("--head-bytes and --embedding-bytes are {} together, more than the {} of --gradient-bytes",
                       work.head_bytes + work.embedding_bytes, work.gradient_bytes));
  }
  if (work.gradient_bytes - work.head_bytes - work.embedding_bytes < work.layers * 4 * 64) {
    refuse("--gradient-bytes leaves less than 64 numbers a layer");
  }
  // A layer's largest tensor is a good quarter of it.
  const int64_t layer = (work.gradient_bytes - work.head_bytes - work.embedding_bytes) / work.layers;
  if (std::max({work.head_bytes, work.embedding_bytes, layer / 3}) / 4 > std::numeric_limits<int>::max()) {
    refuse("a gradient of more than 8 GiB: give more --layers");
  }
  return work;
}

nlohmann::ordered_json finite(double value) {
  return std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
}

nlohmann::ordered_json json_of(const StepTimes& times) {
  return {{"iteration_s", times.iteration},
          {"forward_s", times.forward},
          {"backward_s", times.backward},
          {"exposed_comm_s", times.exposed},
          {"exposed_gather_s", times.exposed_gather},
          {"update_s", times.update},
          {"comm_s", times.communication},
          {"last_comm_s", times.last_communication},
          {"hideable_s", times.hideable},
          {"hidden_s", times.hidden}};
}

nlohmann::ordered_json json_of(const Flags& flags, const Group& group, const StepWork& work, bool emulated,
                               const StepBenchResult& result) {
  nlohmann::ordered_json line = json_of(result.mean);
  line["hidden_fraction"] = finite(result.hidden_fraction);
  line.update({{"computation", work.describe()},
               {"emulated_computation", flags.config.empty()},
               {"emulated", emulated},
               {"ranks", group.size()},
               {"iterations", flags.iterations},
               {"sync", flags.sync},
               {"wire_dtype", flags.wire},
               {"shard_optimizer", flags.model.shard_optimizer},
               {"gradient_bytes", work.gradient_bytes()},
               {"gather_s", nullptr},
               {"first_gather_s", nullptr},
               {"gather_hidden_fraction", nullptr},
               {"wrong", nullptr},
               {"cables", nlohmann::ordered_json::array()},
               {"steps", nlohmann::ordered_json::array()}});
  if (result.wrong) line["wrong"] = *result.wrong;
  if (result.gather) {
    line["gather_s"] = result.gather->all;
    line["first_gather_s"] = result.gather->first;
    line["gather_hidden_fraction"] = finite(result.gather_hidden_fraction);
  }
  for (const CableTraffic& cable : result.cables) {
    line["cables"].push_back({{"id", cable.id},
                              {"bytes", cable.bytes_sent},
                              {"bytes_received", cable.bytes_received},
                              {"peer", cable.peer}});
  }
  for (const StepTimes& step : result.steps) line["steps"].push_back(json_of(step));
  return line;
}

std::string row(const std::string& name, const StepTimes& t) {
  return fmt::format("{:>8} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f} {:>10.4f}\n", name,
                     t.iteration, t.forward, t.backward, t.exposed, t.update, t.communication, t.hideable, t.hidden);
}

int measure(const Flags& flags, const std::optional<EmulatedWork>& emulated, const Config& config, Group& group) {
  const bool cables_emulated = Settings::get().fabric_fd.has_value(), first = config.rank == 0;
  if (first && !flags.trace.empty()) Timeline::check_path(flags.trace);
  JsonLines json(first ? flags.json : "");
  StepBenchOptions options{.sums = flags.sync != "none",
                           .exchange = {},
                           .iterations = flags.iterations,
                           .warmup = flags.warmup,
                           .check = flags.check};
  options.exchange = {.sync = flags.sync == "after" ? Sync::after : Sync::overlap,
                      .busy_wait = flags.busy_wait,
                      .wire = *dtype_from_name(flags.wire)};
  Timeline timeline(!flags.trace.empty());
  ModelWork model = flags.model;
  model.config = flags.config;
  const std::unique_ptr<StepWork> work = emulated ? emulated_work(group, *emulated, options.exchange.wire, flags.check)
                                                  : model_work(group, model, timeline, options.sums);
  options.exchange.shards = work->shards();
  if (first) {
    fmt::print("# trunkline {} bench step: {}\n# {}\n", version(),
               describe_place(group, cables_emulated, group.cables()), work->describe());
    if (cables_emulated) fmt::print("# emulated cables: figures of software on this machine, not of Thunderbolt\n");
    fmt::print("# {} bytes of gradients, sums {}, as {}; seconds of the slowest rank\n", work->gradient_bytes(),
               flags.sync == "none"    ? "none"
               : flags.sync == "after" ? "after the backward pass"
                                       : "overlapped",
               name_of(options.exchange.wire));
    fmt::print("# {:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "step", "iteration", "forward",
               "backward", "exposed", "update", "comm", "hideable", "hidden");
    std::fflush(stdout);
  }
  const StepBenchResult result = run_step_bench(group, *work, timeline, options);
  const bool wrong = result.wrong.value_or(0) > 0;
  if (!first) return wrong ? 1 : 0;
  for (size_t i = 0; i < result.steps.size(); ++i) fmt::print("{}", row(std::to_string(i + 1), result.steps[i]));
  fmt::print("{}", row("mean", result.mean));
  if (std::isfinite(result.hidden_fraction)) {
    fmt::print(
        "# hidden behind computation: {:.1f} % of the sums' time but for the last piece's, {:.1f} % of what could be\n",
        100 * result.hidden_fraction, 100 * result.mean.hidden / result.mean.hideable);
  }
  if (result.gather) {
    fmt::print("# gathers of weights: {:.4f} s alone, of them {:.4f} for the first; a step waited {:.4f}",
               result.gather->all, result.gather->first, result.mean.exposed_gather);
    if (std::isfinite(result.gather_hidden_fraction)) {
      fmt::print("; behind the forward pass: {:.1f} % of all but the first", 100 * result.gather_hidden_fraction);
    }
    fmt::print("\n");
  }
  if (result.wrong) fmt::print("# elements that are wrong: {} {}\n", *result.wrong, wrong ? "FAILED" : "OK");
  std::fflush(stdout);
  json.write(json_of(flags, group, *work, cables_emulated, result));
  if (!flags.trace.empty()) timeline.write(flags.trace, group.rank());
  return wrong ? 1 : 0;
}

int run(const Flags& flags) {
  if (flags.sync == "none" && (flags.check || flags.model.shard_optimizer)) {
    refuse(flags.check ? "--check with --sync none: there is nothing to check"
                       : "--shard-optimizer with --sync none: nothing is shared");
  }
  std::optional<EmulatedWork> emulated;
  if (flags.config.empty()) emulated = emulated_from(flags);
  const Config config = flags.group.config();
  const auto group = Group::connect(config);
  return or_tell_others(*group, [&] { return measure(flags, emulated, config, *group); });
}

}  // namespace

Command bench_step_command(CLI::App& bench) {
  CLI::App* const command = bench.add_subcommand(
      "step", "A training step with real sums of gradients; computation is a timer, or a model (--model)");
  auto flags = std::make_shared<Flags>();
  add_flags(*command, *flags);
  return {command, [flags] { return run(*flags); }};
}

}  // namespace trunkline

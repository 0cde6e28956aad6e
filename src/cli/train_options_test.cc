#include "cli/train_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TrainOptionsTest : public ::testing::Test {
 protected:
  ~TrainOptionsTest() override { std::filesystem::remove(file_); }

  void yaml(const std::string& text) { write_file(file_, text); }

  // Parses the arguments, after the three that every run needs.
  TrainOptions parse(std::vector<std::string> arguments, bool with_yaml = false) {
    arguments.insert(arguments.begin(), {"--model", "m", "--data", "d", "--output", "o"});
    if (with_yaml) arguments.insert(arguments.begin(), {"-c", file_.string()});
    return parse_all(std::move(arguments));
  }
  static TrainOptions parse_all(std::vector<std::string> arguments) {
    CLI::App app;
    const TrainOptionParser parser(app);
    std::ranges::reverse(arguments);
    app.parse(arguments);
    return parser.options();
  }
  std::string error_of(const std::vector<std::string>& arguments, bool with_yaml = false) {
    try {
      parse(arguments, with_yaml);
    } catch (const Error& error) {
      return error.what();
    } catch (const CLI::ParseError& error) {
      return error.what();
    }
    return "none";
  }
  std::string yaml_error(const std::string& text) {
    yaml(text);
    return error_of({}, true);
  }

  const std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / fmt::format("trunkline-options-{}.yaml", ::getpid());
};

TEST_F(TrainOptionsTest, TheCommandLineGoesOverTheFileOverTheDefaults) {
  yaml("batch_size: 8\nlearning_rate: 1e-4\nmask_prompt: true\nepochs: 3\nseed: null\n");
  const TrainOptions options = parse({"--batch-size", "2", "--iters", "5"}, true);
  EXPECT_EQ(options.batch_size, 2);
  EXPECT_EQ(options.learning_rate, 1e-4);
  EXPECT_EQ(options.rows.targets, TargetTurns::all_assistant);
  EXPECT_EQ(options.iters, 5);
  EXPECT_EQ(options.epochs, 0);
  EXPECT_EQ(options.seed, 0u);
  EXPECT_EQ(options.val_batches, 25);
  EXPECT_EQ(options.model, "m");
}

TEST_F(TrainOptionsTest, EveryKeyOfMlxLmThatHasACounterpartIsTaken) {
  yaml(
      "model: a\ndata: b\noutput: c\ntrain: true\ntest: false\nfine_tune_type: full\noptimizer: sgd\n"
      "optimizer_config: {adam: {}, adamw: {betas: [0.9, 0.98]}, sgd: {momentum: 0.9, weight_decay: 1e-2}}\n"
      "mask_prompt: false\nnum_layers: -1\nbatch_size: 4\niters: 1000\nval_batches: -1\nlearning_rate: 1e-5\n"
      "lr_schedule:\n  name: cosine_decay\n  warmup: 100\n  warmup_init: 1e-7\n  arguments: [1e-5, 1000, 1e-7]\n"
      "steps_per_report: 10\nsteps_per_eval: 200\ngrad_accumulation_steps: 2\nsave_every: 100\ntest_batches: 500\n"
      "max_seq_length: 2048\nseed: 1\nprompt_feature: prompt\ncompletion_feature: answer\ntext_feature: text\n"
      "chat_feature: messages\ngrad_checkpoint: false\n");
  const TrainOptions options = parse_all({"-c", file_.string()});
  EXPECT_EQ(options.optimizer.kind, OptimizerOptions::Kind::sgd);
  EXPECT_EQ(options.num_layers, -1);
  EXPECT_EQ(options.optimizer.momentum, 0.9);
  EXPECT_EQ(options.optimizer.weight_decay, 0.01);
  EXPECT_EQ(options.schedule, (ScheduleOptions{"cosine_decay", {1e-5, 1000, 1e-7}, 100, 1e-7}));
  EXPECT_EQ(options.val_batches, -1);
  EXPECT_EQ(options.rows.completion_feature, "answer");
}

TEST_F(TrainOptionsTest, HowAStepIsComputed) {
  const TrainOptions options = parse({"--sync", "after", "--recompute", "none", "--hold-gradients", "--query-block",
                                      "64", "--vocab-slice", "100", "--memory-limit", "1.5", "--trace", "t.json"});
  EXPECT_EQ(options.sync, Sync::after);
  EXPECT_EQ(options.recompute, Recompute::none);
  EXPECT_TRUE(options.hold_gradients);
  EXPECT_EQ(options.query_block, 64);
  EXPECT_EQ(options.vocab_slice, 100);
  EXPECT_EQ(options.memory_limit, 1.5);
  EXPECT_EQ(options.trace, "t.json");
  EXPECT_EQ(parse({"--grad-checkpoint"}).recompute, Recompute::all);
  EXPECT_EQ(parse({}).recompute, Recompute::automatic);
  EXPECT_EQ(parse({}).sync, Sync::overlap);
  EXPECT_THAT(error_of({"--sync", "never"}), HasSubstr("not one of overlap, after"));
  EXPECT_EQ(parse({"--wire-dtype", "bf16"}).wire_dtype, Dtype::bf16);
  EXPECT_THAT(error_of({"--wire-dtype", "float16"}), HasSubstr("not one of float32, bfloat16"));
  EXPECT_THAT(error_of({"--wire-dtype", "bf16", "--whole-graph"}), HasSubstr("--whole-graph"));
  for (const std::vector<std::string>& only : std::vector<std::vector<std::string>>{{"--query-block", "64"},
                                                                                    {"--query-block", "0"},
                                                                                    {"--token-block", "64"},
                                                                                    {"--loss-block", "64"},
                                                                                    {"--vocab-slice", "64"},
                                                                                    {"--recompute", "all"},
                                                                                    {"--recompute", "auto"},
                                                                                    {"--grad-checkpoint"},
                                                                                    {"--memory-limit", "2"},
                                                                                    {"--wire-dtype", "bf16"},
                                                                                    {"--wire-dtype", "float32"},
                                                                                    {"--shard-optimizer"},
                                                                                    {"--sync", "overlap"}}) {
    std::vector<std::string> arguments = only;
    arguments.emplace_back("--whole-graph");
    EXPECT_THAT(error_of(arguments), AllOf(HasSubstr(only[0]), HasSubstr("not with --whole-graph"))) << only[0];
    // The same in a file, and in any mix of the two.
    std::string key = only[0].substr(2);
    std::ranges::replace(key, '-', '_');
    const std::string entry = key + ": " + (only.size() > 1 ? only[1] : "true") + "\n";
    const auto refused = AllOf(HasSubstr(".yaml:1: " + key + ": "), HasSubstr("not with --whole-graph"));
    EXPECT_THAT(yaml_error(entry + "whole_graph: true\n"), refused) << key;
    EXPECT_THAT(error_of({"--whole-graph"}, true), refused) << key;
    yaml("whole_graph: true\n");
    EXPECT_THAT(error_of(only, true), AllOf(HasSubstr(only[0] + ": "), HasSubstr("not with --whole-graph"))) << key;
  }
  EXPECT_EQ(yaml_error("whole_graph: true\ngrad_checkpoint: false\nshard_optimizer: false\nrecompute: null\n"), "none");
  yaml("sync: overlap\n");
  EXPECT_TRUE(parse({"--whole-graph", "--sync", "after"}, true).whole_graph);
  EXPECT_TRUE(parse({"--whole-graph", "--sync", "after"}).whole_graph);
  EXPECT_EQ(parse({}).dtype, Dtype::f32);
  EXPECT_EQ(parse({"--dtype", "bfloat16"}).dtype, Dtype::bf16);
  EXPECT_TRUE(parse({"--dtype", "bfloat16", "--pure-bf16"}).pure_bf16);
  EXPECT_THAT(error_of({"--dtype", "float16"}), HasSubstr("not one of float32, bfloat16"));
  EXPECT_THAT(error_of({"--pure-bf16"}), HasSubstr("--dtype bfloat16"));
  EXPECT_THAT(error_of({"--dtype", "bf16", "--pure-bf16", "--shard-optimizer"}), HasSubstr("masters"));
  EXPECT_THAT(error_of({"--token-block", "-1"}), HasSubstr("--token-block"));
}

// What a run writes as its settings gives the same run.
TEST_F(TrainOptionsTest, SettingsReadBackAsTheyWere) {
  const TrainOptions options = parse({"--optimizer",
                                      "adamw",
                                      "--beta2",
                                      "0.95",
                                      "--weight-decay",
                                      "0.1",
                                      "--lr-schedule",
                                      "cosine",
                                      "--warmup",
                                      "3",
                                      "--mask-prompt=last",
                                      "--save-dtype",
                                      "bf16",
                                      "--epochs",
                                      "2",
                                      "--seed",
                                      "7",
                                      "--clip",
                                      "0.5",
                                      "--learning-rate",
                                      "3e-4",
                                      "--keep",
                                      "5",
                                      "--num-layers",
                                      "2"});
  std::string text;
  for (const Setting& setting : settings_of(options)) text += setting.key + ": " + setting.value + "\n";
  yaml(text);
  const TrainOptions again = parse_all({"-c", file_.string()});
  const auto lines = [](const TrainOptions& it) {
    std::vector<std::string> result;
    for (const Setting& setting : settings_of(it)) result.push_back(setting.key + ": " + setting.value);
    return result;
  };
  EXPECT_EQ(lines(again), lines(options));
  std::string whole;
  for (const Setting& setting : settings_of(parse({"--whole-graph"})))
    whole += setting.key + ": " + setting.value + "\n";
  yaml(whole);
  EXPECT_TRUE(parse_all({"-c", file_.string()}).whole_graph);
  EXPECT_EQ(again.optimizer, options.optimizer);
  EXPECT_EQ(again.schedule, options.schedule);
  EXPECT_EQ(again.max_grad_norm, 0.5);
  EXPECT_EQ(again.rows.targets, TargetTurns::last_assistant);
}

TEST_F(TrainOptionsTest, SettingsNamePathsFromAnywhere) {
  for (const Setting& setting : settings_of(parse({"--trace", "t.json"}))) {
    if (setting.key != "model" && setting.key != "output" && setting.key != "trace") continue;
    EXPECT_TRUE(std::filesystem::path(nlohmann::json::parse(setting.value).get<std::string>()).is_absolute())
        << setting.value;
  }
}

TEST_F(TrainOptionsTest, TwoWaysToSayOneThingAreNotMixed) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--grad-checkpoint", "--recompute", "none"}, {"--recompute", "auto", "--grad-checkpoint"}}) {
    EXPECT_THAT(error_of(flags), HasSubstr("recompute and grad_checkpoint are both given"));
  }
  EXPECT_THAT(yaml_error("grad_checkpoint: true\nrecompute: none\n"),
              HasSubstr(".yaml:1: grad_checkpoint: recompute and grad_checkpoint are both given"));
  // A flag goes over either of the file's.
  yaml("recompute: none\niters: 5\nfine_tune_type: lora\nlora_scale: 10\n");
  const TrainOptions options = parse({"--grad-checkpoint", "--epochs", "2", "--lora-alpha", "4"}, true);
  EXPECT_EQ(options.recompute, Recompute::all);
  EXPECT_EQ(options.epochs, 2);
  EXPECT_EQ(options.lora.alpha, 4.0);
  EXPECT_FALSE(options.lora.scale);
  yaml("grad_checkpoint: true\n");
  EXPECT_EQ(parse({"--recompute", "none"}, true).recompute, Recompute::none);
  EXPECT_EQ(parse({"--grad-checkpoint=false"}, true).recompute, Recompute::automatic);
  yaml("grad_checkpoint: false\nrecompute: none\n");
  EXPECT_EQ(parse({}, true).recompute, Recompute::none);
}

TEST_F(TrainOptionsTest, EveryNameOfAnOptionIsAKey) {
  yaml("clip: 0.5\n");
  EXPECT_EQ(parse({}, true).max_grad_norm, 0.5);
  EXPECT_EQ(parse({"--max-grad-norm", "2"}, true).max_grad_norm, 2.0);
  EXPECT_THAT(yaml_error("max_grad_norm: 1\nclip: 1\n"), HasSubstr(".yaml:2: clip: max_grad_norm is given too"));
}

TEST_F(TrainOptionsTest, AFileIsOneDocumentOfNamesWithValues) {
  EXPECT_THAT(yaml_error("seed: 1\n---\nseed: 2\n"), HasSubstr(".yaml:3: a second document"));
  EXPECT_EQ(yaml_error("---\nseed: 1\n...\n"), "none");
  EXPECT_EQ(yaml_error(""), "none");
  EXPECT_EQ(yaml_error("\xef\xbb\xbfseed: 1\r\n"), "none");
  EXPECT_THAT(yaml_error("seed: 1\nnull: 2\n"),
              HasSubstr(".yaml:2: a key is the name of an option, and here it is null"));
  EXPECT_THAT(yaml_error("? [a]\n: 2\n"), HasSubstr(".yaml:1: a key is the name of an option, and here it is a list"));
  EXPECT_THAT(yaml_error("fine_tune_type: lora\nlora_parameters:\n  rank: 4\n  {a: b}: 2\n"),
              HasSubstr(".yaml:4: lora_parameters: a key is the name of an option, and here it is a map"));
  EXPECT_THAT(yaml_error("fine_tune_type: lora\nlora_parameters: {rank: 4, rank: 8}\n"),
              HasSubstr(".yaml:2: lora_parameters: rank: the key is there twice"));
  yaml("seed: 1\n");
  EXPECT_THAT(error_of({"-c", std::filesystem::temp_directory_path().string()}),
              AllOf(HasSubstr(std::filesystem::temp_directory_path().string()), HasSubstr("Is a directory")));
}

TEST_F(TrainOptionsTest, AQuoteThatStaysOpenIsShownWhereItBegins) {
  const auto open = [](int line) { return HasSubstr(fmt::format(".yaml:{}: a quote begins on this line", line)); };
  EXPECT_THAT(yaml_error("model: \"m/q3\ndata: d\noutput: o\n"), open(1));
  EXPECT_THAT(yaml_error("model: \"m/q3\ndata: \"d\"\n"), open(1));
  EXPECT_THAT(yaml_error("seed: 1\nlearning_rate: \"1e-3"), open(2));
  EXPECT_THAT(yaml_error("seed: 1\nlearning_rate: '1e-3\n"), open(2));
  EXPECT_THAT(yaml_error("seed: 1\nlora_parameters: {keys: ['q_proj, v_proj]}\n"), open(2));
  EXPECT_THAT(yaml_error("seed: !!str \"1\n"), open(1));
  yaml("text_feature: 'it''s'\nprompt_feature: \"a \\\" b\"\n");
  EXPECT_EQ(parse({}, true).rows.text_feature, "it's");
  EXPECT_EQ(parse({}, true).rows.prompt_feature, "a \" b");
}

TEST_F(TrainOptionsTest, WhatLeavesNothingToMeasureIsRefused) {
  EXPECT_THAT(error_of({"--test", "--test-batches", "0"}), HasSubstr("--test-batches: 0 leaves nothing to measure"));
  EXPECT_EQ(error_of({"--test-batches", "0"}), "none");
  for (const char* option : {"--early-stopping-patience=2", "--keep-best", "--load-best-model-at-end"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find('='));
    EXPECT_THAT(error_of({option, "--val-batches", "0"}), HasSubstr("--val-batches: 0 is no validation, and " + name));
  }
  EXPECT_THAT(yaml_error("val_batches: 0\nkeep_best: true\n"), HasSubstr(".yaml:1: val_batches: 0 is no validation"));
}

TEST_F(TrainOptionsTest, MaskPromptStandsAloneOrNamesTurns) {
  EXPECT_EQ(parse({}).rows.targets, TargetTurns::all_tokens);
  EXPECT_EQ(parse({"--mask-prompt"}).rows.targets, TargetTurns::all_assistant);
  EXPECT_EQ(parse({"--mask-prompt=last"}).rows.targets, TargetTurns::last_assistant);
  EXPECT_THAT(error_of({"--mask-prompt=first"}), HasSubstr("not one of"));
}

TEST_F(TrainOptionsTest, UnknownFlagsAndKeysAreRefused) {
  EXPECT_THAT(error_of({"--batchsize", "4"}), HasSubstr("--batchsize"));
  EXPECT_THAT(yaml_error("seed: 1\n\nbatchsize: 4\n"), HasSubstr(".yaml:3: batchsize: unknown key"));
  EXPECT_THAT(yaml_error("seed: 1\nseed: 2\n"), HasSubstr(".yaml:2: seed: the key is there twice"));
  EXPECT_THAT(yaml_error("optimizer_config:\n  adamw:\n    beta: 1\n"), HasSubstr(":3: optimizer_config: adamw: beta"));
  EXPECT_THAT(yaml_error("lr_schedule:\n  name: cosine\n  warm: 1\n"), HasSubstr(":3: lr_schedule: warm: unknown key"));
  EXPECT_THAT(yaml_error("a: [1\n"), HasSubstr(".yaml:"));
  EXPECT_THAT(yaml_error("just text\n"), HasSubstr("keys with values"));
}

TEST_F(TrainOptionsTest, AdaptersAreAskedForAsInMlxLm) {
  yaml(
      "fine_tune_type: lora\nnum_layers: 4\n"
      "lora_parameters: {rank: 4, scale: 10.0, dropout: 0.1, keys: [self_attn.q_proj, v_proj]}\n");
  LoraOptions lora = parse({}, true).lora;
  EXPECT_EQ(lora.rank, 4);
  EXPECT_EQ(lora.scale, 10.0);
  EXPECT_EQ(lora.dropout, 0.1);
  EXPECT_EQ(parse({}, true).num_layers, 4);
  EXPECT_EQ(lora.keys, (std::vector<std::string>{"self_attn.q_proj", "v_proj"}));
  const TrainOptions all =
      parse({"--lora-alpha", "16", "--rslora", "--lora-keys", "o_proj,lm_head", "--num-layers", "all"}, true);
  lora = all.lora;
  EXPECT_FALSE(lora.scale) << "a flag takes the place of its other in the file";
  EXPECT_EQ(lora.alpha, 16.0);
  EXPECT_TRUE(lora.rslora);
  EXPECT_EQ(all.num_layers, -1);
  EXPECT_EQ(lora.keys, (std::vector<std::string>{"o_proj", "lm_head"}));
  const TrainOptions dora = parse({"--fine-tune-type", "dora", "--resume-adapter-file", "a/adapter_model.safetensors"});
  EXPECT_EQ(dora.fine_tune, FineTune::dora);
  EXPECT_EQ(dora.lora.start, "a");
  const auto lora_error = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {"--fine-tune-type", "lora"});
    return error_of(arguments);
  };
  EXPECT_THAT(error_of({"--lora-rank", "4"}), HasSubstr("--lora-rank: counts for an adapter alone"));
  EXPECT_THAT(lora_error({"--lora-scale", "1", "--lora-alpha", "2"}),
              HasSubstr("lora_scale and lora_alpha are both given"));
  EXPECT_THAT(yaml_error("fine_tune_type: lora\nlora_parameters: {scale: 1, alpha: 2}\n"),
              HasSubstr("lora_parameters: alpha: scale and alpha are both given"));
  EXPECT_THAT(lora_error({"--adapter", "a", "--resume-adapter-file", "adapter_model.safetensors"}),
              HasSubstr("adapter and resume_adapter_file are both given"));
  EXPECT_THAT(lora_error({"--lora-rank", "0"}), HasSubstr("--lora-rank: 0 is less than 1"));
  EXPECT_THAT(lora_error({"--lora-scale", "0"}), HasSubstr("--lora-scale: 0 makes the adapter nothing"));
  EXPECT_EQ(parse({"--fine-tune-type", "lora", "--lora-keys", "q_proj,o_proj,q_proj"}).lora.keys,
            (std::vector<std::string>{"q_proj", "o_proj"}));
  EXPECT_THAT(lora_error({"--lora-dropout", "1"}), HasSubstr("less than 1 is needed"));
  EXPECT_THAT(lora_error({"--lora-keys", "q_proj,,v_proj"}), HasSubstr("--lora-keys: names"));
  EXPECT_THAT(lora_error({"--num-layers", "0"}), HasSubstr("0 layers are none"));
  EXPECT_THAT(lora_error({"--adapter", "a", "--lora-rank", "4"}), HasSubstr("has settings of its own"));
  EXPECT_THAT(lora_error({"--resume-adapter-file", "a.npz"}), HasSubstr("adapter_model.safetensors is expected"));
  EXPECT_THAT(yaml_error("fine_tune_type: lora\nlora_parameters: {rank: 8, r: 8}\n"),
              HasSubstr(":2: lora_parameters: r: unknown key"));
}

TEST_F(TrainOptionsTest, WhatIsNotSupportedIsRefusedByName) {
  EXPECT_THAT(error_of({"--fine-tune-type", "all"}), HasSubstr("not one of full, lora, dora"));
  EXPECT_THAT(error_of({"--adapter-path", "x"}), HasSubstr("--adapter-path: an adapter is written to output"));
  EXPECT_THAT(yaml_error("seed: 1\nlora_parameters: {rank: 8}\n"),
              HasSubstr(":2: lora_parameters: counts for an adapter alone"));
  EXPECT_EQ(yaml_error("report_to: null\ntrust_remote_code: false\n"), "none");
  EXPECT_THAT(error_of({"--optimizer", "muon"}), HasSubstr("not one of adamw, adam, sgd"));
  EXPECT_THAT(error_of({"--num-layers", "0"}), HasSubstr("0 layers are none"));
}

TEST_F(TrainOptionsTest, ValuesAreChecked) {
  EXPECT_THAT(error_of({"--batch-size", "0"}), HasSubstr("--batch-size: 0 is less than 1"));
  EXPECT_THAT(error_of({"--batch-size", "4.5"}), HasSubstr("\"4.5\" is not a whole number"));
  EXPECT_THAT(error_of({"--val-batches", "-2"}), HasSubstr("-2 is less than -1"));
  EXPECT_THAT(error_of({"--learning-rate", "nan"}), HasSubstr("\"nan\" is not a number"));
  EXPECT_THAT(error_of({"--learning-rate", "1e-5x"}), HasSubstr("\"1e-5x\" is not a number"));
  EXPECT_THAT(error_of({"--beta1", "1"}), HasSubstr("--beta1"));
  EXPECT_THAT(error_of({"--optimizer", "adamw", "--momentum", "0.9"}), HasSubstr("adamw has no such option"));
  EXPECT_THAT(error_of({"--save-dtype", "int8"}), HasSubstr("not one of float32"));
  EXPECT_THAT(error_of({"--lr-schedule", "polynomial"}), HasSubstr("--lr-schedule: lr_schedule: name: \"polynomial\""));
  EXPECT_THAT(yaml_error("optimizer_config: {adam: {weight_decay: 0.5}}\n"),
              HasSubstr("adam: weight_decay: the optimizer adam has no such option"));
  EXPECT_EQ(yaml_error("optimizer_config: {sgd: {momentum: 0.5}, muon: {anything: 1}, adam: {eps: null}}\n"), "none");
  for (const char* key : {"text_feature", "model", "trace", "iters"}) {
    EXPECT_THAT(yaml_error(std::string(key) + ": \"\"\n"), HasSubstr(std::string(".yaml:1: ") + key + ": a value is"));
  }
  EXPECT_THAT(error_of({"--chat-feature", ""}), HasSubstr("--chat-feature: a value is expected, and it is empty"));
  EXPECT_THAT(yaml_error("iters: many\n"), HasSubstr(".yaml:1: iters: \"many\" is not a whole number"));
  EXPECT_THAT(yaml_error("iters: [1]\n"), HasSubstr(".yaml:1: iters: one value is expected"));
  EXPECT_THAT(error_of({"--iters", "5", "--epochs", "1"}), HasSubstr("iters and epochs are both given"));
  EXPECT_THAT(yaml_error("iters: 5\nepochs: 1\n"), HasSubstr("iters and epochs are both given"));
}

TEST_F(TrainOptionsTest, TheDocumentHasEveryFlag) {
  const std::string document = read_file(std::filesystem::path(TRUNKLINE_SOURCE_DIR) / "docs" / "options.md");
  CLI::App app;
  const TrainOptionParser parser(app);
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      EXPECT_TRUE(name == "help" || document.find("`--" + name) != std::string::npos) << name;
    }
  }
}

TEST_F(TrainOptionsTest, WhatEveryRunNeedsIsNamed) {
  const auto error = [](std::vector<std::string> arguments) {
    try {
      parse_all(std::move(arguments));
    } catch (const Error& it) {
      return std::string(it.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(error({}), HasSubstr("--model is missing"));
  EXPECT_THAT(error({"--model", "m"}), HasSubstr("--data is missing"));
  EXPECT_THAT(error({"--model", "m", "--data", "d"}), HasSubstr("--output is missing"));
  EXPECT_THAT(error({"-c", "/nowhere.yaml"}), HasSubstr("-c: cannot open /nowhere.yaml: No such file"));
}

}  // namespace
}  // namespace trunkline

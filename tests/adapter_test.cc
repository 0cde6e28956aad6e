// Adapters through the program: trained, resumed, used and fused.
#include "model/adapter.h"

#include <gmock/gmock.h>

#include <map>

#include "tiny_run_test.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Arguments = std::vector<std::string>;

class AdapterTest : public TinyRun {
 protected:
  Adapter adapter(const std::string& out) const { return load_adapter(output(out), load_checkpoint(model())); }

  // Between two runs' adapters.
  double furthest(const std::string& a, const std::string& b) const {
    const Adapter x = adapter(a), y = adapter(b);
    EXPECT_EQ(x.tensors.size(), y.tensors.size());
    double largest = 0.0;
    for (size_t i = 0; i < x.tensors.size(); ++i) {
      const double difference = mx::max(mx::abs(mx::subtract(x.tensors[i], y.tensors[i]))).item<float>();
      largest = std::max(largest, difference);
    }
    return largest;
  }
  std::string saved(const std::string& out) const { return read_file(output(out) / "adapter_model.safetensors"); }

  Ended generate(const fs::path& from, const Arguments& more = {}) const {
    return run(program(with({TRUNKLINE_BINARY_DIR "/trunkline", "generate", "--model", from, "--prompt", "7 8",
                             "--max-tokens", "12", "--ignore-chat-template"},
                            more)));
  }
  Ended fuse(const std::string& out, const fs::path& to) const {
    return run(program(
        {TRUNKLINE_BINARY_DIR "/trunkline", "fuse", "--model", model(), "--adapter", output(out), "--output", to}));
  }
};

// SGD, so that differences of rounding stay such.
const Arguments kSgd = {"--fine-tune-type", "lora", "--optimizer", "sgd", "--learning-rate", "0.2",
                        "--val-batches",    "-1",   "--iters",     "4",   "--lora-rank",     "3",
                        "--lora-alpha",     "6"};

TEST_F(AdapterTest, DropoutAndUpdateDoNotDependOnHowRowsAreCut) {
  for (const char* type : {"lora", "dora"}) {
    SCOPED_TRACE(type);
    const std::string name = type;
    const Arguments settings = with(kSgd, {"--fine-tune-type", type, "--lora-dropout", "0.3", "--lora-keys",
                                           "q_proj,o_proj,up_proj,down_proj,embed_tokens,lm_head"});
    const Ended one = run(train(with(settings, {"--batch-size", "8"}), name + "one"));
    ASSERT_EQ(one.code, 0) << one.error;
    EXPECT_THAT(one.output, HasSubstr("saved the adapter"));
    const std::map<std::string, Arguments> others = {
        {"whole", {"--batch-size", "8", "--whole-graph"}},
        {"blocks", {"--batch-size", "8", "--token-block", "5", "--query-block", "3", "--loss-block", "7"}},
        {"recomputed", {"--batch-size", "8", "--recompute", "all"}},
        {"packed", {"--batch-size", "24", "--iters", "1", "--packing"}},
        {"unpacked", {"--batch-size", "24", "--iters", "1"}},
        {"cut", {"--batch-size", "2", "--grad-accumulation-steps", "4"}}};
    for (const auto& [other, arguments] : others) {
      const Ended ended = run(train(with(settings, arguments), name + other));
      ASSERT_EQ(ended.code, 0) << ended.error;
      if (!other.ends_with("packed")) {
        EXPECT_LT(furthest(name + "one", name + other), 2e-6) << other;
      }
    }
    EXPECT_LT(furthest(name + "packed", name + "unpacked"), 2e-6);
    ASSERT_EQ(run(train(with(settings, {"--batch-size", "8"}), name + "ranks", 3)).code, 0);
    EXPECT_LT(furthest(name + "one", name + "ranks"), 2e-6);
    ASSERT_EQ(run(train(with(settings, {"--batch-size", "8", "--lora-dropout", "0"}), name + "plain")).code, 0);
    EXPECT_GT(furthest(name + "one", name + "plain"), 1e-4) << "dropout does something";
  }
}

// The weights are those of ranks that each have all of the optimizer, also where no layer has an adapter.
TEST_F(AdapterTest, ASharedOptimizerChangesNoBit) {
  for (const char* keys : {"embed_tokens", "lm_head,embed_tokens"}) {
    const Arguments settings = with(kSgd, {"--batch-size", "6", "--lora-keys", keys});
    ASSERT_EQ(run(train(settings, std::string("all-") + keys, 2)).code, 0);
    const Ended shared = run(train(with(settings, {"--shard-optimizer"}), std::string("shared-") + keys, 2));
    ASSERT_EQ(shared.code, 0) << shared.error;
    EXPECT_EQ(furthest(std::string("all-") + keys, std::string("shared-") + keys), 0.0) << keys;
  }
}

// Base and adapter are computed in bf16; the adapter is trained and saved in f32, and packed rows are what they were.
TEST_F(AdapterTest, IsTrainedThroughMastersInBf16) {
  for (const char* type : {"lora", "dora"}) {
    SCOPED_TRACE(type);
    const std::string name = type;
    const Arguments settings = with(kSgd, {"--fine-tune-type", type, "--batch-size", "6", "--iters", "2", "--lora-keys",
                                           "q_proj,o_proj,up_proj,down_proj,embed_tokens,lm_head"});
    ASSERT_EQ(run(train(settings, name + "f32")).code, 0);
    const Ended bf16 = run(train(with(settings, {"--dtype", "bfloat16"}), name + "bf16"));
    ASSERT_EQ(bf16.code, 0) << bf16.error;
    EXPECT_GT(furthest(name + "f32", name + "bf16"), 1e-7);
    EXPECT_LT(furthest(name + "f32", name + "bf16"), 2e-2);
    const Ended packed = run(train(with(settings, {"--dtype", "bfloat16", "--packing"}), name + "packed"));
    EXPECT_EQ(packed.code, 0) << packed.error;
  }
}

TEST_F(AdapterTest, AResumedRunIsTheRunThatWasNeverStopped) {
  const Arguments settings = {"--fine-tune-type", "dora", "--iters",      "60", "--batch-size",     "3",
                              "--learning-rate",  "0.01", "--lora-rank",  "2",  "--save-every",     "30",
                              "--lora-dropout",   "0.1",  "--num-layers", "1",  "--steps-per-eval", "40"};
  expect_killed_and_resumed_alike(settings, 30, {"adapter_model.safetensors", "adapter_config.json"});
  // The base is not in a checkpoint, but must be the same.
  EXPECT_LT(fs::file_size(output("cut") / "checkpoints/60/weights.safetensors"), 100000u);
  write_tiny_weights(model(), [](const std::string& name, mx::array& value) {
    if (name == "model.norm.weight") value = value + mx::array(0.5f);
  });
  const Ended other_base = run(train(with(settings, {"--resume"}), "cut"));
  EXPECT_NE(other_base.code, 0);
  EXPECT_THAT(other_base.error, HasSubstr("base weights"));
  const Ended other_rank = run(train(with(settings, {"--resume", "--lora-rank", "4"}), "cut"));
  EXPECT_NE(other_rank.code, 0);
  EXPECT_THAT(other_rank.error, HasSubstr("lora_parameters"));
}

TEST_F(AdapterTest, IsUsedFusedAndGoneOnWith) {
  const Arguments settings = with(kSgd, {"--learning-rate", "1", "--iters", "20"});
  ASSERT_EQ(run(train(settings, "out")).code, 0);
  const Adapter trained = adapter("out");
  EXPECT_EQ(trained.shape.modules.size(), 14u);
  EXPECT_EQ(trained.shape.modules.front().scale, 2.0);
  EXPECT_THAT(read_file(output("out") / "metrics.jsonl"), HasSubstr("\"loss\""));
  const Ended plain = generate(model()), used = generate(model(), {"--adapter", output("out")});
  ASSERT_EQ(used.code, 0) << used.error;
  EXPECT_NE(used.output, plain.output);
  const Ended fused = fuse("out", output("fused"));
  ASSERT_EQ(fused.code, 0) << fused.error;
  EXPECT_THAT(fused.output, AllOf(HasSubstr("merged 14 modules"), HasSubstr("reload equal")));
  EXPECT_EQ(generate(output("fused")).output, used.output);
  EXPECT_EQ(read_file(output("fused") / "config.json"), read_file(model() / "config.json"));
  EXPECT_NE(fuse("out", output("fused")).code, 0) << "it is there already";

  // Beginning with it, at no learning rate, gives it back; its settings need not be said.
  const Arguments again = {"--fine-tune-type", "lora", "--learning-rate", "0", "--iters", "1", "--optimizer", "sgd"};
  const Ended started = run(train(with(again, {"--adapter", output("out")}), "again"));
  ASSERT_EQ(started.code, 0) << started.error;
  EXPECT_EQ(saved("again"), saved("out"));
  const std::string file = output("out") / "adapter_model.safetensors";
  ASSERT_EQ(run(train(with(again, {"--resume-adapter-file", file}), "by_file")).code, 0);
  EXPECT_EQ(saved("by_file"), saved("out"));
}

TEST_F(AdapterTest, AnAdapterOfATiedHeadPartsItFromTheEmbedding) {
  ASSERT_EQ(
      run(train(with(kSgd, {"--lora-keys", "lm_head,embed_tokens", "--learning-rate", "1", "--iters", "20"}))).code, 0);
  const Ended used = generate(model(), {"--adapter", output()});
  const Ended fused = fuse("out", output("fused"));
  ASSERT_EQ(fused.code, 0) << fused.error;
  EXPECT_THAT(fused.output, HasSubstr("tie_word_embeddings: false"));
  EXPECT_EQ(generate(output("fused")).output, used.output);
  const Checkpoint merged = load_checkpoint(output("fused"));
  EXPECT_FALSE(merged.shape.tied);
  EXPECT_TRUE(merged.warnings.empty());
}

// Logits of a head with an adapter are there in more copies than those of a matrix.
TEST_F(AdapterTest, AHeadsAdapterTakesNoMoreMemoryThanForecast) {
  nlohmann::json config = tiny_config();
  config["vocab_size"] = 20000;
  write_file(model() / "config.json", config.dump());
  write_tiny_weights(model());
  for (const char* type : {"lora", "dora"}) {
    const Ended ended = run(train({"--fine-tune-type", type, "--lora-keys", "q_proj,lm_head", "--batch-size", "8",
                                   "--iters", "3", "--val-batches", "0"},
                                  type));
    ASSERT_EQ(ended.code, 0) << ended.error;
    const std::string before = "memory forecast: ";
    const size_t at = ended.output.find(before);
    ASSERT_NE(at, std::string::npos) << ended.output;
    const double forecast_mib = std::stod(ended.output.substr(at + before.size()));
    EXPECT_EQ(ended.output.find(" MiB", at), ended.output.find(' ', at + before.size())) << ended.output;
    EXPECT_LE(metrics(type).back()["mlx_peak_bytes"].get<double>() / (1 << 20), forecast_mib) << type;
  }
}

// A failed fuse leaves nothing, so that the same command can be given again.
TEST_F(AdapterTest, AFailedFuseLeavesNothing) {
  ASSERT_EQ(run(train({"--fine-tune-type", "lora", "--iters", "1"})).code, 0);
  const fs::path to = output("fused"), old = output("fused.partial");
  fs::create_directories(old / "left");  // by a killed process
  const std::vector<std::string> argv = {"/bin/sh",
                                         "-c",
                                         "trap '' XFSZ; ulimit -f 24; exec \"$0\" \"$@\"",
                                         TRUNKLINE_BINARY_DIR "/trunkline",
                                         "fuse",
                                         "--model",
                                         model(),
                                         "--adapter",
                                         output(),
                                         "--output",
                                         to};
  const Ended full = run(program(argv));
  EXPECT_NE(full.code, 0);
  EXPECT_FALSE(fs::exists(to)) << full.error;
  EXPECT_FALSE(fs::exists(old)) << full.error;
  fs::create_directories(to);  // empty: it may be there
  const Ended again = fuse("out", to);
  EXPECT_EQ(again.code, 0) << again.error;
  EXPECT_TRUE(fs::exists(to / "model.safetensors"));
  EXPECT_FALSE(fs::exists(old));
}

// Of several at once one has the output, and the others are told so.
TEST_F(AdapterTest, FusesIntoOneOutputAreKeptApart) {
  ASSERT_EQ(run(train({"--fine-tune-type", "lora", "--iters", "1"})).code, 0);
  const fs::path to = output("fused");
  const ProcessOptions options =
      program({TRUNKLINE_BINARY_DIR "/trunkline", "fuse", "--model", model(), "--adapter", output(), "--output", to});
  std::vector<Process> processes;
  for (int i = 0; i < 4; ++i) processes.push_back(Process::start(options));
  int fused = 0;
  for (Process& process : processes) {
    const Ended ended = finish(process);
    if (ended.code == 0) {
      ++fused;
    } else {
      EXPECT_THAT(ended.error,
                  AnyOf(HasSubstr("is in use by another run, "), HasSubstr("is there already and not empty")));
    }
  }
  EXPECT_EQ(fused, 1);
  EXPECT_NO_THROW(load_checkpoint(to));
  EXPECT_FALSE(fs::exists(to / ".lock"));
  EXPECT_FALSE(fs::exists(output("fused.partial")));

  write_file(output("file"), "");
  const Ended file = fuse("out", output("file"));
  EXPECT_EQ(file.code, 1);
  EXPECT_THAT(file.error, HasSubstr(output("file").string() + " is a file: name a directory"));
  EXPECT_FALSE(fs::exists(output("file.partial")));
}

TEST_F(AdapterTest, AnotherBaseIsTold) {
  ASSERT_EQ(run(train({"--fine-tune-type", "lora", "--iters", "1"})).code, 0);
  const auto said = HasSubstr("trained on other weights");
  EXPECT_THAT(generate(model(), {"--adapter", output()}).error, Not(said));
  write_tiny_weights(model(), [](const std::string& name, mx::array& value) {
    if (name == "model.norm.weight") value = value + mx::array(0.5f);
  });
  EXPECT_THAT(generate(model(), {"--adapter", output()}).error, said);
  EXPECT_THAT(fuse("out", output("fused")).error, said);
  const Ended gone_on = run(train({"--fine-tune-type", "lora", "--iters", "1", "--adapter", output()}, "on"));
  EXPECT_EQ(gone_on.code, 0) << gone_on.error;
  EXPECT_THAT(gone_on.output, said);
}

TEST_F(AdapterTest, WhatMakesNoSenseIsRefusedByName) {
  const auto error = [&](const Arguments& arguments) {
    const Ended ended = run(train(with({"--iters", "1"}, arguments)));
    EXPECT_EQ(ended.code, 1);
    EXPECT_FALSE(fs::exists(output() / "adapter_model.safetensors"));
    return ended.error;
  };
  const Arguments lora = {"--fine-tune-type", "lora"};
  EXPECT_THAT(error(with(lora, {"--num-layers", "3"})), HasSubstr("num_layers: 3 are asked for, the model has 2"));
  EXPECT_THAT(error(with(lora, {"--lora-keys", "q_proj,wq"})),
              HasSubstr("lora_parameters: keys (--lora-keys): no module of this model is named wq"));
  EXPECT_THAT(error(with(lora, {"--lora-rank", "9"})),
              HasSubstr("lora_rank: 9 is too much for model.layers.0.self_attn.k_proj, [8, 16]: 8 is the most"));
  EXPECT_THAT(error(with(lora, {"--lora-keys", "self_attn"})), HasSubstr("cannot have an adapter"));
  EXPECT_THAT(error(with(lora, {"--adapter", output("nowhere")})), HasSubstr("nowhere: not a directory"));
  ASSERT_EQ(run(train(with(lora, {"--iters", "1"}), "lora")).code, 0);
  EXPECT_THAT(error({"--fine-tune-type", "dora", "--adapter", output("lora")}), HasSubstr("is a LoRA adapter"));
  fs::copy(output("lora"), output("nothing"), fs::copy_options::recursive);
  nlohmann::json config = nlohmann::json::parse(read_file(output("nothing") / "adapter_config.json"));
  config["lora_alpha"] = 0;
  write_file(output("nothing") / "adapter_config.json", config.dump());
  EXPECT_THAT(error(with(lora, {"--adapter", output("nothing")})), HasSubstr("its alpha makes"));
  EXPECT_THAT(run(train(with(lora, {"--iters", "1"}), "lora")).error, HasSubstr("already holds"));
  EXPECT_THAT(generate(output("lora")).error,
              HasSubstr("holds an adapter, not a model: use --model BASE --adapter " + output("lora").string()));
  EXPECT_THAT(generate(model(), {"--adapter", model()}).error, HasSubstr("adapter_config.json"));
  EXPECT_THAT(fuse("nowhere", output("x")).error, HasSubstr("nowhere: not a directory"));
}

}  // namespace
}  // namespace trunkline

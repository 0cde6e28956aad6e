// `trunkline train` from its command line to its output: the update does not depend on how rows are cut, a resumed run
// is the run that was never stopped, and what is saved is what was trained.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>

#include "tiny_run_test.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

using TrainTest = TinyRun;

const std::vector<std::string> kSgd = {"--optimizer", "sgd", "--learning-rate", "0.5", "--val-batches", "-1"};

TEST_F(TrainTest, TheUpdateDoesNotDependOnHowRowsAreCut) {
  const auto sgd = with(kSgd, {"--iters", "4"});
  const Ended one = run(train(with(sgd, {"--batch-size", "8"}), "one"));
  ASSERT_EQ(one.code, 0) << one.error;
  ASSERT_EQ(run(train(with(sgd, {"--batch-size", "8"}), "ranks", 2)).code, 0);
  ASSERT_EQ(run(train(with(sgd, {"--batch-size", "2", "--grad-accumulation-steps", "4"}), "cut")).code, 0);
  ASSERT_EQ(run(train(with(sgd, {"--batch-size", "4", "--grad-accumulation-steps", "2"}), "both", 3)).code, 0);
  EXPECT_GT(largest_difference("one", "../" + model().filename().string()), 1e-2);  // it did train
  for (const char* other : {"ranks", "cut", "both"}) {
    EXPECT_LT(largest_difference("one", other), 2e-6) << other;
    const auto a = metrics("one"), b = metrics(other);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"loss", "val_loss", "grad_norm"}) {
        ASSERT_EQ(a[i].contains(key), b[i].contains(key));
        if (a[i].contains(key)) {
          EXPECT_NEAR(a[i][key].get<double>(), b[i][key].get<double>(), 1e-5) << other << " " << key;
        }
      }
    }
  }
}

TEST_F(TrainTest, AResumedRunIsTheRunThatWasNeverStopped) {
  const std::vector<std::string> settings = {
      "--iters",        "100",    "--batch-size", "3",  "--learning-rate",  "0.01",
      "--lr-schedule",  "cosine", "--warmup",     "5",  "--clip",           "1",
      "--weight-decay", "0.1",    "--save-every", "50", "--steps-per-eval", "40"};
  expect_killed_and_resumed_alike(settings, 50, {"model.safetensors"});
}

// Sizes of blocks follow from the memory limit, and enter the last bits.
TEST_F(TrainTest, ARunGoesOnInBlocksOfTheSameSizes) {
  std::string rows, row;  // as long as one another: every micro-batch is the largest that there may be
  for (int i = 0; i < 100; ++i) row += fmt::format("{} ", i);
  for (int i = 0; i < 8; ++i) rows += nlohmann::json{{"text", row + std::to_string(10 + i)}}.dump() + "\n";
  write_file(data() / "train.jsonl", rows);
  const auto sgd = with(kSgd, {"--batch-size", "8"});
  const auto least =
      with(sgd, {"--memory-limit", least_limit(run(train(with(sgd, {"--memory-limit", "0.0001"}), "refused", 2)))});
  const auto of_six = [&](const std::vector<std::string>& how) { return with(how, {"--iters", "6"}); };
  ASSERT_EQ(run(train(of_six(sgd), "much", 2)).code, 0);
  ASSERT_EQ(run(train(of_six(least), "little", 2)).code, 0);
  EXPECT_NE(weights("much"), weights("little"));

  ASSERT_EQ(run(train(with(least, {"--iters", "3"}), "grown", 2)).code, 0);
  const Ended grown = run(train(with(of_six(sgd), {"--resume"}), "grown", 2));
  ASSERT_EQ(grown.code, 0) << grown.error;
  EXPECT_THAT(grown.output, Not(HasSubstr("the memory limit of rank")));
  EXPECT_EQ(weights("grown"), weights("little"));

  ASSERT_EQ(run(train(with(sgd, {"--iters", "3"}), "shrunk", 2)).code, 0);
  const Ended shrunk = run(train(with(of_six(least), {"--resume"}), "shrunk", 2));
  ASSERT_EQ(shrunk.code, 0) << shrunk.error;
  EXPECT_THAT(shrunk.output, HasSubstr("the memory limit of rank 1 is"));
  EXPECT_LT(largest_difference("shrunk", "much"), 2e-6);
}

TEST_F(TrainTest, ARunGoesOnWithAnotherNumberOfRanks) {
  const auto sgd = with(kSgd, {"--batch-size", "4", "--save-every", "3"});
  ASSERT_EQ(run(train(with(sgd, {"--iters", "6"}), "whole")).code, 0);
  ASSERT_EQ(run(train(with(sgd, {"--iters", "3"}), "grown", 2)).code, 0);
  const Ended resumed = run(train(with(sgd, {"--iters", "6", "--resume"}), "grown"));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.output, HasSubstr("the checkpoint was made on 2 ranks and this run has 1"));
  EXPECT_LT(largest_difference("grown", "whole"), 2e-6);
}

TEST_F(TrainTest, ShortRanksAndOddRowsEndTogether) {
  write_rows("train.jsonl", 11, 3);
  const Ended ended = run(train(with(kSgd, {"--batch-size", "2", "--epochs", "2", "--save-every", "5"}), "out", 4));
  ASSERT_EQ(ended.code, 0) << ended.error;
  const auto lines = metrics();
  EXPECT_EQ(lines.back()["step"], 12);  // 6 an epoch, the last of one row
}

TEST_F(TrainTest, ControlCFinishesTheStepOnEveryRankAndResumes) {
  const auto sgd = with(kSgd, {"--batch-size", "4", "--steps-per-report", "1"});
  Process process = Process::start(train(with(sgd, {"--iters", "100000"}), "out", 2));
  std::string seen = read_until(process, "step 3/");
  process.signal(SIGINT);
  const Ended ended = finish(process);
  EXPECT_EQ(ended.code, 130) << ended.error;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("interrupted after step "), HasSubstr("--resume")));
  const auto lines = metrics();
  const int64_t last = lines.back()["step"];
  EXPECT_TRUE(fs::exists(output() / "checkpoints" / std::to_string(last) / "manifest.json"));
  EXPECT_FALSE(fs::exists(output() / "model.safetensors"));
  const Ended resumed = run(train(with(sgd, {"--resume", "--iters", std::to_string(last + 2)}), "out", 2));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_THAT(resumed.output, HasSubstr(fmt::format("going on from step {}", last)));
  EXPECT_EQ(metrics().back()["step"], last + 2);
  const Ended past = run(train(with(sgd, {"--resume", "--iters", "1"})));
  EXPECT_EQ(past.code, 1);
  EXPECT_THAT(past.error, HasSubstr("past the run's 1 steps"));
}

// All rows in one step, by themselves and packed: the same update, whatever the ranks.
TEST_F(TrainTest, PackedRowsTrainAsTheyDoAlone) {
  const auto sgd = with(kSgd, {"--iters", "3", "--batch-size", "24"}), packing = with(sgd, {"--packing"});
  ASSERT_EQ(run(train(sgd, "alone")).code, 0);
  const Ended packed = run(train(with(packing, {"--max-seq-length", "150"}), "packed"));
  ASSERT_EQ(packed.code, 0) << packed.error;
  EXPECT_THAT(packed.output, HasSubstr("; packed into "));
  ASSERT_EQ(
      run(train(with(packing, {"--max-seq-length", "1000", "--token-block", "7", "--query-block", "9"}), "ranks", 2))
          .code,
      0);
  ASSERT_EQ(run(train(with(packing, {"--whole-graph"}), "whole")).code, 0);
  for (const char* other : {"packed", "ranks", "whole"}) {
    EXPECT_LT(largest_difference("alone", other), 2e-6) << other;
    const auto a = metrics("alone"), b = metrics(other);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) {
      for (const char* key : {"loss", "val_loss"}) {
        ASSERT_EQ(a[i].contains(key), b[i].contains(key));
        if (!a[i].contains(key)) continue;
        EXPECT_NEAR(a[i][key].get<double>(), b[i][key].get<double>(), 1e-5) << other;
      }
      for (const char* key : {"tokens", "target_tokens"}) {
        EXPECT_EQ(a[i].value(key, 0), b[i].value(key, 0)) << other << " " << key;
      }
    }
  }
}

// Epochs, schedule and resuming count packed sequences.
TEST_F(TrainTest, APackedRunGoesOn) {
  const auto packing = with(kSgd, {"--packing", "--max-seq-length", "130", "--batch-size", "2", "--save-every", "3"});
  const Ended whole = run(train(with(packing, {"--epochs", "2"}), "whole", 2));
  ASSERT_EQ(whole.code, 0) << whole.error;
  const int64_t steps = metrics("whole").back()["step"];
  EXPECT_LT(steps, 24);  // by themselves, the 24 rows make 24 steps
  ASSERT_EQ(run(train(with(packing, {"--iters", "3"}), "cut", 2)).code, 0);
  ASSERT_EQ(run(train(with(packing, {"--epochs", "2", "--resume"}), "cut", 2)).code, 0);
  EXPECT_EQ(weights("cut"), weights("whole"));
  const Ended other = run(train(with(kSgd, {"--max-seq-length", "130", "--batch-size", "2", "--resume"}), "cut", 2));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.error, HasSubstr("packing: true there, false here"));
}

TEST_F(TrainTest, TheSameRunGivesTheSameBytes) {
  const auto sgd = with(kSgd, {"--iters", "3", "--save-dtype", "bfloat16"});
  ASSERT_EQ(run(train(sgd, "a", 2)).code, 0);
  ASSERT_EQ(run(train(sgd, "b", 2)).code, 0);
  EXPECT_EQ(weights("a"), weights("b"));
  const Checkpoint saved = load_checkpoint(output("a"));
  EXPECT_EQ(saved.dtypes.front(), mx::bfloat16);
  for (const char* file : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    EXPECT_EQ(read_file(output("a") / file), read_file(model() / file));
  }
  // What a run writes as its settings is the run.
  const Ended again =
      run(program({TRUNKLINE_BINARY_DIR "/trunkline", "launch", "-n", "2", "--", TRUNKLINE_BINARY_DIR "/trunkline",
                   "train", "-c", output("a") / "settings.yaml", "--output", output("c")}));
  ASSERT_EQ(again.code, 0) << again.error;
  EXPECT_EQ(weights("c"), weights("a"));
}

// Whenever sums are made and gradients are held, the weights are the same to the last bit.
TEST_F(TrainTest, OverlapAndHoldingChangeNoBit) {
  const std::vector<std::vector<std::string>> optimizers = {
      {"--learning-rate", "0.01"},
      {"--optimizer", "sgd", "--momentum", "0.9", "--learning-rate", "0.05"},
      {"--optimizer", "sgd", "--learning-rate", "0.5"}};
  for (const int ranks : {1, 2, 3}) {
    for (size_t o = 0; o < optimizers.size(); ++o) {
      if (ranks != 2 && o != 0) continue;
      const auto common = with(optimizers[o], {"--iters", "20", "--batch-size", "4", "--val-batches", "0"});
      const auto name = [&](const char* what) { return fmt::format("{}-{}-{}", what, ranks, o); };
      const Ended overlap = run(train(with(common, {"--sync", "overlap"}), name("overlap"), ranks));
      ASSERT_EQ(overlap.code, 0) << overlap.error;
      EXPECT_THAT(overlap.output, AllOf(HasSubstr("each layer is updated as soon as its gradients are summed"),
                                        HasSubstr("exposed communication")));
      EXPECT_EQ(overlap.output.find("comm hidden") != std::string::npos, ranks > 1) << overlap.output;
      ASSERT_EQ(run(train(with(common, {"--sync", "after"}), name("after"), ranks)).code, 0);
      EXPECT_EQ(weights(name("after")), weights(name("overlap")));
      ASSERT_EQ(run(train(with(common, {"--hold-gradients"}), name("hold"), ranks)).code, 0);
      EXPECT_EQ(weights(name("hold")), weights(name("overlap")));
      ASSERT_EQ(run(train(with(common, {"--recompute", "all", "--busy-wait"}), name("least"), ranks)).code, 0);
      EXPECT_EQ(weights(name("least")), weights(name("overlap")));
    }
  }
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__)
// Over emulated cables: the bits are those of TCP.
TEST_F(TrainTest, OverlapOnCablesChangesNoBit) {
  const std::vector<std::string> common = {"--iters",       "20", "--batch-size",    "4",
                                           "--val-batches", "0",  "--learning-rate", "0.01"};
  for (const int ranks : {1, 2, 3, 4}) {
    const auto name = [&](const std::string& what) { return fmt::format("{}-{}", what, ranks); };
    ASSERT_EQ(run(train(common, name("tcp"), ranks)).code, 0);
    for (const std::string sync : {"overlap", "after"}) {
      ProcessOptions options = train(with(common, {"--sync", sync}), name(sync), ranks);
      const auto separator = std::ranges::find(options.argv, "--");
      if (separator != options.argv.end()) options.argv.insert(separator, {"--cables", "2"});
      const Ended ended = run(options);
      ASSERT_EQ(ended.code, 0) << ended.error << ended.output;
      EXPECT_EQ(weights(name(sync)), weights(name("tcp"))) << sync << " " << ranks;
    }
  }
}
#endif

// Half the bytes: what is rounded is small, and the ranks stay alike (they compare their weights at each step).
TEST_F(TrainTest, GradientsMayTravelAsBf16) {
  const auto sgd = with(kSgd, {"--iters", "8", "--batch-size", "6", "--check-every", "1"});
  const auto bf16 = with(sgd, {"--wire-dtype", "bf16"});
  for (const int ranks : {2, 3}) {
    const auto name = [&](const char* what) { return fmt::format("{}-{}", what, ranks); };
    ASSERT_EQ(run(train(sgd, name("f32"), ranks)).code, 0);
    const Ended overlap = run(train(bf16, name("overlap"), ranks));
    ASSERT_EQ(overlap.code, 0) << overlap.error;
    ASSERT_EQ(run(train(with(bf16, {"--sync", "after"}), name("after"), ranks)).code, 0);
    EXPECT_EQ(weights(name("after")), weights(name("overlap")));
    const double difference = largest_difference(name("f32"), name("overlap"));
    EXPECT_GT(difference, 1e-7);
    EXPECT_LT(difference, 1e-2);
  }
  ASSERT_EQ(run(train(sgd, "alone")).code, 0);
  ASSERT_EQ(run(train(bf16, "alone-bf16")).code, 0);
  EXPECT_EQ(weights("alone"), weights("alone-bf16"));  // nothing travels
}

// Each rank has a part of the optimizer: the weights and the snapshots are those of runs where each has all of it.
TEST_F(TrainTest, ASharedOptimizerChangesNoBit) {
  const std::vector<std::vector<std::string>> optimizers = {
      {"--learning-rate", "0.01"},
      {"--optimizer", "sgd", "--momentum", "0.9", "--learning-rate", "0.05"},
      {"--optimizer", "sgd", "--learning-rate", "0.5"}};
  for (const int ranks : {1, 2, 3, 4}) {
    for (size_t o = 0; o < optimizers.size(); ++o) {
      if (ranks != 3 && o != 0) continue;
      const auto common = with(optimizers[o], {"--iters", "8", "--batch-size", "4", "--vocab-slice", "150",
                                               "--steps-per-eval", "3", "--check-every", "4"});
      const auto name = [&](const char* what) { return fmt::format("{}-{}-{}", what, ranks, o); };
      const Ended all = run(train(common, name("all"), ranks));
      ASSERT_EQ(all.code, 0) << all.error;
      const Ended shared = run(train(with(common, {"--shard-optimizer"}), name("shared"), ranks));
      ASSERT_EQ(shared.code, 0) << shared.error;
      EXPECT_EQ(weights(name("shared")), weights(name("all")));
      for (const char* file : {"weights.safetensors", "optimizer.safetensors"}) {
        const auto at = std::filesystem::path("checkpoints/8") / file;
        EXPECT_EQ(read_file(output(name("shared")) / at), read_file(output(name("all")) / at)) << ranks << " " << file;
      }
    }
  }
}

TEST_F(TrainTest, ASharedOptimizerGoesOnWithAndWithout) {
  const std::vector<std::string> common = {"--learning-rate", "0.01", "--batch-size", "4", "--val-batches", "0"};
  const auto six = with(common, {"--iters", "6"}), three = with(common, {"--iters", "3"});
  ASSERT_EQ(run(train(six, "whole", 2)).code, 0);
  ASSERT_EQ(run(train(with(three, {"--shard-optimizer"}), "off", 2)).code, 0);
  ASSERT_EQ(run(train(with(six, {"--resume"}), "off", 2)).code, 0);
  EXPECT_EQ(weights("off"), weights("whole"));
  ASSERT_EQ(run(train(three, "on", 2)).code, 0);
  ASSERT_EQ(run(train(with(six, {"--resume", "--shard-optimizer"}), "on", 2)).code, 0);
  EXPECT_EQ(weights("on"), weights("whole"));
  ASSERT_EQ(run(train(with(three, {"--shard-optimizer"}), "more", 2)).code, 0);
  const Ended more = run(train(with(six, {"--resume", "--shard-optimizer"}), "more", 3));
  ASSERT_EQ(more.code, 0) << more.error;
  EXPECT_LT(largest_difference("more", "whole"), 1e-4);
}

// In a ring parts of sums are added in an order that depends on how a message is cut, and a shared optimizer cuts
// otherwise. What holds: ranks agree at every step, the same run has the same bits whenever sums are made, and the
// weights are those without sharing but for rounding; of two ranks to the last bit.
TEST_F(TrainTest, ASharedOptimizerOverARing) {
  const auto ring = with(
      kSgd, {"--iters", "4", "--batch-size", "6", "--vocab-slice", "150", "--check-every", "1", "--algorithm", "ring"});
  const auto shared = with(ring, {"--shard-optimizer"});
  for (const int ranks : {2, 3}) {
    const auto name = [&](const char* what) { return fmt::format("{}-{}", what, ranks); };
    ASSERT_EQ(run(train(ring, name("all"), ranks)).code, 0);
    const Ended overlap = run(train(shared, name("overlap"), ranks));
    ASSERT_EQ(overlap.code, 0) << overlap.error;
    ASSERT_EQ(run(train(with(shared, {"--sync", "after"}), name("after"), ranks)).code, 0);
    EXPECT_EQ(weights(name("after")), weights(name("overlap")));
    EXPECT_LT(largest_difference(name("overlap"), name("all")), 2e-6);
  }
  EXPECT_EQ(weights("overlap-2"), weights("all-2"));
  ASSERT_EQ(run(train(with(shared, {"--iters", "2"}), "cut", 3)).code, 0);
  ASSERT_EQ(run(train(with(shared, {"--resume"}), "cut", 3)).code, 0);
  EXPECT_EQ(weights("cut"), weights("overlap-3"));
}

// The norm is made of all ranks' parts, and what one of them finds ends all.
TEST_F(TrainTest, ASharedOptimizerClips) {
  const auto clip = with(kSgd, {"--iters", "5", "--clip", "0.05", "--grad-accumulation-steps", "2"});
  ASSERT_EQ(run(train(clip, "all", 3)).code, 0);
  const Ended shared = run(train(with(clip, {"--shard-optimizer"}), "shared", 3));
  ASSERT_EQ(shared.code, 0) << shared.error;
  EXPECT_LT(largest_difference("shared", "all"), 1e-6);
  EXPECT_NEAR(metrics("shared").back().value("grad_norm", 0.0), metrics("all").back().value("grad_norm", 0.0), 1e-9);
}

// The model is computed in bf16 and trained in f32: near the f32 run, and what is saved and gone on from is in full.
TEST_F(TrainTest, Bf16HasMastersInF32) {
  const std::vector<std::string> common = {"--learning-rate", "1e-3", "--batch-size", "4", "--save-dtype", "float32"};
  const auto six = with(common, {"--iters", "6"}), three = with(common, {"--iters", "3"});
  const auto bf16 = [](const std::vector<std::string>& options) { return with(options, {"--dtype", "bfloat16"}); };
  ASSERT_EQ(run(train(six, "f32")).code, 0);
  const Ended whole = run(train(bf16(six), "bf16"));
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_THAT(whole.output, HasSubstr("in bfloat16 with float32 masters on 1 rank"));
  EXPECT_NEAR(metrics("bf16").back().value("val_loss", 0.0), metrics("f32").back().value("val_loss", 1.0), 0.02);
  EXPECT_GT(largest_difference("f32", "bf16"), 1e-7);
  EXPECT_LT(largest_difference("f32", "bf16"), 0.02);
  ASSERT_EQ(run(train(bf16(three), "resumed")).code, 0);
  EXPECT_NE(run(train(with(six, {"--resume"}), "resumed")).code, 0);  // it was another arithmetic
  ASSERT_EQ(run(train(with(bf16(six), {"--resume"}), "resumed")).code, 0);
  EXPECT_EQ(weights("resumed"), weights("bf16"));
  ASSERT_EQ(run(train(bf16(six), "all", 2)).code, 0);
  const Ended shared = run(train(with(bf16(six), {"--shard-optimizer"}), "shared", 2));
  ASSERT_EQ(shared.code, 0) << shared.error;
  EXPECT_EQ(weights("shared"), weights("all"));
  ASSERT_EQ(run(train(with(bf16(six), {"--whole-graph"}), "graph")).code, 0);
  EXPECT_LT(largest_difference("graph", "bf16"), 0.02);
}

// --num-layers in a full fine-tuning: the last layers alone are trained, and all else is saved as it came.
TEST_F(TrainTest, TheLastLayersAloneAreTrained) {
  const std::vector<std::string> common = {"--num-layers", "1", "--iters",         "6",
                                           "--batch-size", "6", "--learning-rate", "0.01"};
  const Ended layers = run(train(common, "layers"));
  ASSERT_EQ(layers.code, 0) << layers.error;
  EXPECT_THAT(layers.output, HasSubstr("reload equal: all 20 tensors"));
  EXPECT_THAT(layers.output, HasSubstr("full fine-tuning of the last 1 of 2 layers: 1952 parameters trained, 17.810 % "
                                       "of 10960, in float32"));
  ASSERT_EQ(run(train(with(common, {"--whole-graph"}), "graph")).code, 0);
  EXPECT_LT(largest_difference("graph", "layers"), 1e-5);
  ASSERT_EQ(run(train(common, "ranks", 2)).code, 0);
  EXPECT_LT(largest_difference("ranks", "layers"), 1e-5);
  ASSERT_EQ(run(train(with(common, {"--shard-optimizer"}), "shared", 2)).code, 0);
  EXPECT_EQ(weights("shared"), weights("ranks"));
  ASSERT_EQ(run(train(with(common, {"--dtype", "bfloat16"}), "bf16")).code, 0);
  EXPECT_LT(largest_difference("bf16", "layers"), 0.1);
  const Checkpoint before = load_checkpoint(model());
  for (const char* out : {"layers", "graph", "shared", "bf16"}) {
    const Checkpoint after = load_checkpoint(output(out));
    for (size_t i = 0; i < before.tensors.size(); ++i) {
      const bool trained = before.layout[i].name.starts_with("model.layers.1.");
      EXPECT_EQ(mx::array_equal(after.tensors[i], before.tensors[i]).item<bool>(), !trained)
          << out << " " << before.layout[i].name;
    }
  }
  // What is gone on from is what is trained, and its optimizer's state.
  const SafetensorsFile kept(output("layers") / "checkpoints/6/weights.safetensors");
  const SafetensorsFile state(output("layers") / "checkpoints/6/optimizer.safetensors");
  EXPECT_EQ(kept.tensors().size(), 9u);
  EXPECT_EQ(state.tensors().size(), 2 * kept.tensors().size());
  for (const auto& [name, tensor] : kept.tensors()) EXPECT_TRUE(name.starts_with("model.layers.1.")) << name;
  const Ended other = run(train(with(common, {"--resume", "--num-layers", "2"}), "layers"));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.error, HasSubstr("num_layers: 1 there, 2 here"));
  const Ended more = run(train(with(common, {"--num-layers", "3"}), "more"));
  EXPECT_EQ(more.code, 1);
  EXPECT_THAT(more.error, HasSubstr("num_layers: 3 are asked for, the model has 2"));
}

TEST_F(TrainTest, TheLastLayersGoOn) {
  expect_killed_and_resumed_alike({"--num-layers", "1", "--iters", "60", "--batch-size", "3", "--learning-rate", "0.01",
                                   "--save-every", "30", "--steps-per-eval", "40"},
                                  30, {"model.safetensors"});
  // What is frozen is not in a checkpoint, but must be the same.
  write_tiny_weights(model(), [](const std::string& name, mx::array& value) {
    if (name == "model.norm.weight") value = value + mx::array(0.5f);
  });
  const Ended other = run(train({"--num-layers", "1", "--iters", "60", "--batch-size", "3", "--learning-rate", "0.01",
                                 "--save-every", "30", "--steps-per-eval", "40", "--resume"},
                                "cut"));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.error, HasSubstr("base weights"));
}

// All layers is not all of the model.
TEST_F(TrainTest, AllLayersLeaveTheRestFrozen) {
  ASSERT_EQ(run(train({"--num-layers", "all", "--iters", "1"})).code, 0);
  const Checkpoint before = load_checkpoint(model()), after = load_checkpoint(output());
  for (size_t i = 0; i < before.tensors.size(); ++i) {
    const bool trained = before.layout[i].name.starts_with("model.layers.");
    EXPECT_EQ(mx::array_equal(after.tensors[i], before.tensors[i]).item<bool>(), !trained) << before.layout[i].name;
  }
}

// Steps too small for a weight's last digit are lost without masters, and are not with them.
TEST_F(TrainTest, PureBf16LosesSmallSteps) {
  const std::vector<std::string> small = {"--iters", "2",       "--optimizer", "sgd",          "--learning-rate",
                                          "1e-6",    "--dtype", "bfloat16",    "--save-dtype", "float32"};
  ASSERT_EQ(run(train(small, "masters")).code, 0);
  ASSERT_EQ(run(train(with(small, {"--pure-bf16"}), "pure")).code, 0);
  ASSERT_EQ(run(train(with(small, {"--iters", "4"}), "masters-more")).code, 0);
  ASSERT_EQ(run(train(with(small, {"--pure-bf16", "--iters", "4"}), "pure-more")).code, 0);
  EXPECT_GT(largest_difference("masters", "masters-more"), 0.0);
  EXPECT_LT(largest_difference("pure", "pure-more"), 0.1 * largest_difference("masters", "masters-more"));
}

TEST_F(TrainTest, TheWholeGraphIsTheSameTraining) {
  const auto sgd = with(kSgd, {"--iters", "6", "--batch-size", "6"});
  ASSERT_EQ(run(train(sgd, "layers", 2)).code, 0);
  ASSERT_EQ(run(train(with(sgd, {"--whole-graph"}), "whole", 2)).code, 0);
  const std::vector<std::string> cut = {"--query-block", "5", "--token-block", "7",
                                        "--loss-block",  "9", "--vocab-slice", "33"};
  ASSERT_EQ(run(train(with(sgd, cut), "cut", 2)).code, 0);
  EXPECT_LT(largest_difference("whole", "layers"), 2e-6);
  EXPECT_LT(largest_difference("whole", "cut"), 2e-6);
}

TEST_F(TrainTest, WhatHoldsGradientsIsSaid) {
  const auto sgd = with(kSgd, {"--iters", "1"});
  EXPECT_THAT(run(train(with(sgd, {"--clip", "1"}), "clip")).output,
              HasSubstr("clipping by the global norm needs all"));
  EXPECT_THAT(run(train(with(sgd, {"--grad-accumulation-steps", "2"}), "more")).output,
              HasSubstr("accumulation needs all of them"));
}

TEST_F(TrainTest, ATimelineIsWritten) {
  const Ended ended = run(train(with(kSgd, {"--iters", "2", "--trace", folder_ / "trace.json"}), "out", 2));
  ASSERT_EQ(ended.code, 0) << ended.error;
  for (const char* file : {"trace.json", "trace.1.json"}) {
    std::set<std::string> names;
    const nlohmann::json trace = nlohmann::json::parse(read_file(folder_ / file));
    for (const auto& event : trace["traceEvents"]) names.insert(event["name"].get<std::string>());
    for (const char* name :
         {"forward", "backward of layer 1 mlp", "sum of layer 0 attention", "update of model.norm.weight"}) {
      EXPECT_TRUE(names.contains(name)) << file << " " << name;
    }
    // What lanes do lies within the sum that they do it for.
    std::map<std::string, std::set<int>> lanes;
    for (const auto& lane : trace["traceEvents"]) {
      if (lane.value("cat", "") != "lane") continue;
      const double begin = lane["ts"], end = begin + double(lane["dur"]);
      const bool found = std::ranges::any_of(trace["traceEvents"], [&](const auto& sum) {
        return sum.value("cat", "") == "communication" && sum["name"] == lane["name"] && double(sum["ts"]) <= begin &&
               end <= double(sum["ts"]) + double(sum["dur"]);
      });
      EXPECT_TRUE(found) << lane;
      lanes[lane["name"]].insert(int(lane["tid"]));
    }
    EXPECT_TRUE(lanes.contains("sum of layer 0 mlp")) << file;
  }
}

TEST_F(TrainTest, MemoryStaysBoundedOverManyLengths) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer keeps freed memory";
#endif
  write_rows("train.jsonl", 300, 5);
  ASSERT_EQ(run(train(with(kSgd, {"--batch-size", "1", "--iters", "300", "--val-batches", "0"}))).code, 0);
  const auto lines = metrics();
  const auto bytes = [&](size_t step) { return lines[step - 1]["process_bytes"].get<int64_t>(); };
  EXPECT_LT(bytes(300) - bytes(100), 30 << 20);
}

// Rows of very different lengths go through the model in several micro-batches; gradients are held for them no more
// than for a single one.
TEST_F(TrainTest, RowsOfManyLengthsHoldNoGradients) {
  nlohmann::json config = tiny_config();
  config.update({{"hidden_size", 256}, {"intermediate_size", 512}, {"num_hidden_layers", 6}, {"head_dim", 128}});
  write_file(model() / "config.json", config.dump());
  write_tiny_weights(model());
  const auto peak_with = [&](int short_words, const std::vector<std::string>& more, const std::string& out) {
    std::string rows;
    for (int i = 0; i < 4; ++i) {
      std::string row;
      for (int word = 0; word < (i % 2 == 0 ? 100 : short_words); ++word) row += std::to_string(word) + " ";
      rows += nlohmann::json{{"text", row}}.dump() + "\n";
    }
    write_file(data() / "train.jsonl", rows);
    const auto arguments = with(
        {"--optimizer", "sgd", "--batch-size", "4", "--iters", "2", "--val-batches", "0", "--recompute", "all"}, more);
    const Ended ended = run(train(arguments, out));
    EXPECT_EQ(ended.code, 0) << ended.error;
    return metrics(out).back()["mlx_peak_bytes"].get<int64_t>();
  };
  const int64_t alike = peak_with(100, {}, "alike"), mixed = peak_with(2, {}, "mixed");
  const int64_t held = peak_with(2, {"--hold-gradients"}, "held");
  const int64_t weights = std::filesystem::file_size(model() / "model.safetensors");
  EXPECT_LE(mixed, alike);
  EXPECT_GT(held, mixed + weights / 2) << "such rows are of little weight here";
}

TEST_F(TrainTest, TestsAfterTraining) {
  write_rows("test.jsonl", 5, 9);
  const Ended ended = run(train(with(kSgd, {"--iters", "1", "--test"})));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.output, HasSubstr("test loss"));
  EXPECT_TRUE(metrics().back().contains("test_perplexity"));
  write_file(data() / "test.jsonl", read_file(data() / "test.jsonl") + "\n\n");
  EXPECT_THAT(run(train(with(kSgd, {"--iters", "1", "--test"}), "it's\tblank")).output,
              ContainsRegex("test.jsonl: 5 rows, .*; 2 blank lines skipped"));
  const auto settings = output("it's\tblank") / "settings.yaml";
  EXPECT_THAT(read_file(settings), HasSubstr("-c " + shell_word(settings.string()) + " --output ANOTHER\n"));
  const std::string user = R"({"messages": [{"role": "user", "content": "x"})";
  write_file(data() / "train.jsonl", user + R"(, {"role": "assistant", "content": "y"}]})");
  std::filesystem::remove(data() / "valid.jsonl");
  write_file(data() / "test.jsonl", user + "]}");
  const Ended none = run(train(with(kSgd, {"--iters", "1", "--test", "--mask-prompt"}), "none"));
  EXPECT_EQ(none.code, 1);
  EXPECT_THAT(none.error, HasSubstr("test.jsonl: none of its 1 rows has a turn of the assistant"));
  EXPECT_THAT(none.output, Not(HasSubstr("nan")));
}

TEST_F(TrainTest, GenerateAnswersWithTheTrainedModel) {
  ASSERT_EQ(run(train(with(kSgd, {"--iters", "1"}))).code, 0);
  const auto generate = [&](std::vector<std::string> more) {
    std::vector<std::string> argv = {TRUNKLINE_BINARY_DIR "/trunkline", "generate", "--model", output()};
    argv.insert(argv.end(), more.begin(), more.end());
    return run(program(argv));
  };
  const Ended greedy = generate({"--prompt", "1 2 3", "--max-tokens", "12"});
  EXPECT_EQ(greedy.code, 0) << greedy.error;
  EXPECT_EQ(generate({"--prompt", "1 2 3", "--max-tokens", "12"}).output, greedy.output);
  const auto drawn = [&](const char* seed) {
    return generate({"--prompt", "1 2 3", "--ignore-chat-template", "--temp", "5", "--seed", seed}).output;
  };
  EXPECT_EQ(drawn("1"), drawn("1"));
  EXPECT_NE(drawn("1"), drawn("2"));
  EXPECT_EQ(generate({"--prompt", "x", "--max-tokens", "0"}).code, 2);
  for (const char* temperature : {"nan", "-1", "inf", "1x"}) {
    const Ended refused = generate({"--prompt", "x", "--temp", temperature});
    EXPECT_EQ(refused.code, 2) << temperature;
    EXPECT_THAT(refused.error, HasSubstr("--temp: \"")) << temperature;
  }
  EXPECT_EQ(generate({"--prompt", "x", "--system-prompt", "y", "--ignore-chat-template"}).code, 2);
}

TEST_F(TrainTest, AnAnswerThatCannotBeWrittenIsToldAsLost) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full here";
  const std::vector<std::string> answer = {"generate", "--prompt", "1", "--model", model()}, version = {"--version"};
  for (const auto& arguments : {answer, version}) {
    const std::vector<std::string> to_full = {"/bin/sh", "-c", "exec \"$0\" \"$@\" > /dev/full",
                                              TRUNKLINE_BINARY_DIR "/trunkline"};
    const Ended ended = run(program(with(to_full, arguments)));
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.error, HasSubstr("standard output: No space left on device"));
  }
}

}  // namespace
}  // namespace trunkline

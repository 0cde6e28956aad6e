// What `trunkline train` refuses, and how a run ends that cannot go on: with a reason on every rank, and nothing lost.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>

#include <limits>
#include <map>

#include "base/clock.h"
#include "tiny_run_test.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class TrainFaultsTest : public TinyRun {
 protected:
  // Two ranks whose commands differ: each runs `train` with its own extra arguments.
  Ended run_different(const std::string& rank0, const std::string& rank1) const {
    const std::string command = fmt::format(
        "exec {} train --iters 2 --model {} --data {} --output {} $(if [ $MLX_RANK = 0 ]; then echo {}; else "
        "echo {}; fi)",
        TRUNKLINE_BINARY_DIR "/trunkline", model().string(), data().string(), output().string(), rank0, rank1);
    return run(program({TRUNKLINE_BINARY_DIR "/trunkline", "launch", "-n", "2", "--", "sh", "-c", command}));
  }
};

TEST_F(TrainFaultsTest, RanksThatDifferEndBeforeTheFirstStep) {
  Ended ended = run_different("--seed 1", "--seed 2");
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.error + ended.output, HasSubstr("seed: 1 on rank 0; 2 on rank 1"));

  fs::copy(data(), folder_ / "data2");
  std::string rows = read_file(data() / "train.jsonl");
  rows[rows.find_first_of("123456789")] = '0';
  write_file(folder_ / "data2" / "train.jsonl", rows);
  ended = run_different("", "--data " + (folder_ / "data2").string());
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.error + ended.output, HasSubstr("train.jsonl: 24 rows, checksum"));

  fs::copy(model(), folder_ / "model2");
  write_tiny_weights(folder_ / "model2", [](const std::string& name, mx::array& value) {
    if (name == "model.layers.1.mlp.up_proj.weight") value = mx::multiply(value, mx::array(1.001f));
  });
  ended = run_different("", "--model " + (folder_ / "model2").string());
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.error + ended.output, HasSubstr("weights: model.layers.1.mlp.up_proj.weight: checksum"));

  nlohmann::json config = tiny_config();
  config["rope_theta"] = 500.0;
  write_tiny_weights(folder_ / "model2");
  write_file(folder_ / "model2" / "config.json", config.dump());
  ended = run_different("", "--model " + (folder_ / "model2").string());
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.error + ended.output,
              HasSubstr("rope_parameters: default, theta 10000 on rank 0; default, theta 500"));
  EXPECT_FALSE(fs::exists(output()));
}

TEST_F(TrainFaultsTest, AFaultOfOneRankIsToldByAll) {
  fs::copy(data(), folder_ / "data2");
  write_file(folder_ / "data2" / "train.jsonl", read_file(data() / "train.jsonl") + "{\"text\": 5}\n");
  const Ended ended = run_different("", "--data " + (folder_ / "data2").string());
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.error + ended.output, AllOf(HasSubstr("data2/train.jsonl:25: text"), HasSubstr("rank 1 (")));
}

TEST_F(TrainFaultsTest, AWeightThatIsNotFiniteEndsTheRunBeforeAnUpdate) {
  write_tiny_weights(model(), [](const std::string& name, mx::array& value) {
    if (name == "model.layers.0.self_attn.q_proj.weight") {
      value = mx::where(mx::greater(value, mx::array(0.1f)), mx::array(std::numeric_limits<float>::infinity()), value);
    }
  });
  const Ended ended = run(train({"--iters", "2"}, "out", 2));
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.output + ended.error,
              AllOf(HasSubstr("step 1: the loss is not finite"), HasSubstr("model.layers.0.self_attn.q_proj.weight"),
                    HasSubstr("nothing was updated"), HasSubstr("no checkpoint was saved yet")));
  EXPECT_FALSE(fs::exists(output() / "model.safetensors"));
}

TEST_F(TrainFaultsTest, AGradientThatIsNotFiniteIsNamed) {
  nlohmann::json config = tiny_config();
  config["tie_word_embeddings"] = false;
  write_file(model() / "config.json", config.dump());
  // The logits and the loss are of ordinary size; the gradient of the norm between them is a sum of head rows.
  write_tiny_weights(model(), [](const std::string& name, mx::array& value) {
    if (name == "lm_head.weight") value = mx::multiply(value, mx::array(3e38f));
    if (name == "model.norm.weight") value = mx::multiply(value, mx::array(1e-37f));
  });
  const Ended ended = run(train({"--iters", "2", "--val-batches", "0"}, "out", 2));
  EXPECT_NE(ended.code, 0);
  // What was updated before is said; with all gradients held, nothing was.
  EXPECT_THAT(ended.output + ended.error,
              AllOf(HasSubstr("step 1: the gradient of "), HasSubstr("is not finite"),
                    HasSubstr("nothing of this step is saved"), HasSubstr("no checkpoint was saved yet")));
  EXPECT_FALSE(fs::exists(output() / "model.safetensors"));
  const Ended held = run(train({"--iters", "2", "--val-batches", "0", "--hold-gradients"}, "held", 2));
  EXPECT_NE(held.code, 0);
  EXPECT_THAT(held.output + held.error, AllOf(HasSubstr("is not finite"), HasSubstr("nothing was updated")));
}

// With a shared optimizer one rank alone sees the infinity, in a row that it updates, when others have updated theirs:
// all end with the tensor's name and the last good checkpoint, and nothing of that step is saved.
TEST_F(TrainFaultsTest, AnInfinityThatOneRankSeesEndsAll) {
  // Unit 20 of the first MLP adds nothing (its up row is zero), but the gradient of that row is beyond f32 where the
  // unit's gate is open: at the token Z, which one row has.
  constexpr int kLarge = 3, kGate = 5, kUnit = 20;
  const auto tokenizer = nlohmann::json::parse(read_file(model() / "tokenizer.json"));
  const int token = tokenizer["model"]["vocab"]["Z"];
  write_tiny_weights(model(), [&](const std::string& name, mx::array& value) {
    const auto put = [&](const mx::Shape& from, const mx::Shape& to, float x) {
      mx::Shape size = to;
      for (size_t i = 0; i < size.size(); ++i) size[i] -= from[i];
      value = mx::slice_update(value, mx::full(size, x), from, to);
    };
    const int rows = value.shape(0), columns = value.ndim() > 1 ? value.shape(1) : 0;
    if (name == "model.embed_tokens.weight") {
      put({0, kGate}, {rows, kGate + 1}, 0.0f);
      put({token, kGate}, {token + 1, kGate + 1}, 0.1f);
    } else if (name == "model.layers.0.self_attn.o_proj.weight") {
      put({kGate, 0}, {kGate + 1, columns}, 0.0f);
    } else if (name == "model.layers.0.post_attention_layernorm.weight") {
      put({kLarge}, {kLarge + 1}, 1e15f);
    } else if (name == "model.layers.0.mlp.gate_proj.weight" || name == "model.layers.0.mlp.up_proj.weight") {
      put({kUnit, 0}, {kUnit + 1, columns}, 0.0f);
      put({0, kLarge}, {rows, kLarge + 1}, 0.0f);
      if (name == "model.layers.0.mlp.gate_proj.weight") put({kUnit, kGate}, {kUnit + 1, kGate + 1}, 1.0f);
    } else if (name == "model.layers.0.mlp.down_proj.weight") {
      put({0, kUnit}, {rows, kUnit + 1}, 1e30f);
    }
  });
  write_file(data() / "train.jsonl", read_file(data() / "train.jsonl") + "{\"text\": \"1 2 Z 3 4\"}\n");
  const std::vector<std::string> arguments = {"--optimizer",   "sgd", "--learning-rate",  "0", "--epochs", "1",
                                              "--batch-size",  "2",   "--save-every",     "1", "--keep",   "99",
                                              "--val-batches", "0",   "--shard-optimizer"};
  for (const bool hold : {false, true}) {
    const std::string out = hold ? "held" : "out";
    const Ended ended = run(train(hold ? with(arguments, {"--hold-gradients"}) : arguments, out, 2));
    EXPECT_NE(ended.code, 0);
    int64_t good = 0;
    while (fs::exists(output(out) / "checkpoints" / std::to_string(good + 1))) ++good;
    ASSERT_GT(good, 0) << ended.output << ended.error;
    const std::string reason = fmt::format(
        "trunkline: step {}: the gradient of model.layers.0.mlp.up_proj.weight is not finite; {}; the last good "
        "checkpoint is {}",
        good + 1,
        hold ? "nothing was updated"
             : "other tensors were updated already, nothing of this step is saved (--hold-gradients checks all first)",
        (output(out) / "checkpoints" / std::to_string(good)).string());
    EXPECT_THAT(ended.output + ended.error, AllOf(HasSubstr("[0] " + reason), HasSubstr("[1] " + reason)));
    EXPECT_FALSE(fs::exists(output(out) / "model.safetensors"));
    EXPECT_EQ(metrics(out).back()["step"], good);
  }
}

TEST_F(TrainFaultsTest, TheLastGoodCheckpointIsNamed) {
  // Two good steps, then a learning rate that throws the weights out of f32.
  write_file(folder_ / "run.yaml", "lr_schedule: {name: exponential_decay, arguments: [1e-3, 1e19]}\noptimizer: sgd\n");
  const Ended ended = run(train({"-c", folder_ / "run.yaml", "--iters", "9", "--save-every", "1", "--keep", "9"}));
  EXPECT_NE(ended.code, 0);
  EXPECT_THAT(ended.error, HasSubstr("the last good checkpoint is " + (output() / "checkpoints/").string()));
  for (const auto& entry : fs::directory_iterator(output() / "checkpoints")) {
    const SafetensorsFile file(entry.path() / "weights.safetensors");
    for (const auto& [name, tensor] : file.tensors()) {
      EXPECT_TRUE(mx::all(mx::isfinite(file.load(name))).item<bool>()) << entry.path() << " " << name;
    }
  }
}

TEST_F(TrainFaultsTest, ARankThatIsKilledEndsTheOthers) {
  ProcessOptions options =
      train({"--iters", "1000000", "--steps-per-report", "1", "--val-batches", "0", "--save-every", "2"}, "out", 2);
  Process process = Process::start(options);
  read_until(process, "step 3/");
  const Ended killed = run(program({"sh", "-c", fmt::format("kill -9 $(pgrep -P {} | tail -1)", process.pid())}));
  const Ended ended = finish(process);
  EXPECT_EQ(ended.code, 137) << ended.output << ended.error;
  EXPECT_THAT(ended.output + ended.error, HasSubstr("rank 1"));
  EXPECT_THAT(ended.error,
              ContainsRegex(
                  "the last good checkpoint is .*/checkpoints/[0-9]+: with the cause put right, the same command with "
                  "--resume"));
}

TEST_F(TrainFaultsTest, FlagsThatRanksMustHaveAlikeAreNamed) {
  const Ended ended = run_different("--algorithm ring", "--algorithm mesh");
  EXPECT_EQ(ended.code, 1) << ended.error;
  EXPECT_THAT(ended.error, HasSubstr("give --algorithm (TRUNKLINE_ALGORITHM) alike"));
  EXPECT_THAT(run_different("--lanes 1", "--lanes 2").error, HasSubstr("give --lanes (TRUNKLINE_LANES) alike"));
}

TEST_F(TrainFaultsTest, WhatDoesNothingIsTold) {
  const std::vector<std::string> flags = {"--shard-optimizer", "--wire-dtype", "bfloat16", "--iters", "1"};
  const Ended one = run(train(with(flags, {"--dtype", "bfloat16"}), "one"));
  EXPECT_EQ(one.code, 0) << one.error;
  EXPECT_THAT(one.output, AllOf(HasSubstr("shard_optimizer does nothing on one rank"),
                                HasSubstr("wire_dtype bfloat16 does nothing on one rank")));
#ifdef __linux__
  EXPECT_THAT(one.output, HasSubstr("bfloat16 is many times slower"));
#endif
  const Ended two = run(train(flags, "two", 2));
  EXPECT_EQ(two.code, 0) << two.error;
  EXPECT_THAT(two.output, AllOf(HasSubstr("each rank has one of 2 parts of the optimizer's state"),
                                HasSubstr("gradients travel between ranks as bfloat16")));
  EXPECT_EQ(run(train({"--pure-bf16"}, "none")).code, 2);
}

// A rank that dies while gradients cross and the backward pass still has long to go: the others end within seconds.
TEST_F(TrainFaultsTest, ARankThatDiesInMidBackwardEndsTheOthers) {
  const std::string trunkline = TRUNKLINE_BINARY_DIR "/trunkline";
  Process process =
      Process::start(program({trunkline, "launch", "-n", "2", "--", trunkline, "bench", "step", "--layers", "40",
                              "--backward-ms", "40000", "--gradient-bytes", "4M", "-w", "0"}));
  read_until(process, "iteration");
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // a piece or two have crossed
  const auto start = Clock::now();
  run(program({"sh", "-c", fmt::format("kill -9 $(pgrep -P {} | tail -1)", process.pid())}));
  const Ended ended = finish(process);
  EXPECT_LT(seconds_since(start), 12.0);
  EXPECT_EQ(ended.code, 137) << ended.output << ended.error;
  EXPECT_THAT(ended.output + ended.error, HasSubstr("[0] trunkline: rank 1"));
}

// The traces of all ranks are looked at before anything is trained, and by all of them.
TEST_F(TrainFaultsTest, ATraceThatCannotBeWrittenIsRefusedFirst) {
  const auto refused = [&](const fs::path& trace, const std::string& why, int ranks = 1) {
    const Ended ended = run(train({"--iters", "2", "--trace", trace}, "out", ranks));
    EXPECT_NE(ended.code, 0) << trace;
    EXPECT_THAT(ended.error + ended.output, AllOf(HasSubstr("--trace: "), HasSubstr(why))) << trace;
    if (ranks > 1) {
      EXPECT_THAT(ended.error + ended.output, AllOf(HasSubstr("[0] trunkline"), HasSubstr("[1] trunkline")));
    }
    EXPECT_FALSE(fs::exists(output())) << trace;
  };
  refused(folder_ / "nowhere" / "t.json", "No such file");
  refused(folder_ / "nowhere" / "t.json", "No such file", 2);
  refused(data(), "is there already and is not a trace");
  refused(folder_ / "data/", "does not name a file");
  const std::string rows = read_file(data() / "train.jsonl");
  refused(data() / "train.jsonl", "is there already and is not a trace");
  EXPECT_EQ(read_file(data() / "train.jsonl"), rows);
  fs::create_symlink(data() / "train.jsonl", folder_ / "link.json");
  refused(folder_ / "link.json", "is there already and is not a trace");
  EXPECT_TRUE(fs::is_symlink(folder_ / "link.json"));
  fs::create_symlink(folder_ / "nothing", folder_ / "dangling.json");
  refused(folder_ / "dangling.json", "is there already and is not a trace");
  const fs::path pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  refused(pipe, "is there already and is not a trace");
  EXPECT_TRUE(fs::is_fifo(pipe));
  // Another rank's.
  write_file(folder_ / "t.1.json", "[1]");
  refused(folder_ / "t.json", "t.1.json is there already", 2);
  EXPECT_FALSE(fs::exists(folder_ / "t.json"));
  EXPECT_EQ(run(train({"--iters", "2", "--trace", ""})).code, 2);
}

TEST_F(TrainFaultsTest, ATraceIsWrittenLastAndIsNotWorthFailingFor) {
  const fs::path trace = folder_ / "traces" / "t.json";
  fs::create_directory(folder_ / "traces");
  const std::vector<std::string> arguments = {"--iters", "300", "--steps-per-report", "1", "--val-batches", "0",
                                              "--trace", trace};
  Process process = Process::start(train(arguments));
  read_until(process, "step 2/");
  fs::remove(folder_ / "traces");
  const Ended ended = finish(process);
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.error, AllOf(HasSubstr("warning: no trace was written"), HasSubstr(trace.string())));
  EXPECT_TRUE(fs::exists(output() / "model.safetensors"));
  // An older trace is written over.
  fs::create_directory(folder_ / "traces");
  for (const char* out : {"a", "b"}) ASSERT_EQ(run(train({"--iters", "1", "--trace", trace}, out)).code, 0);
  EXPECT_TRUE(nlohmann::json::parse(read_file(trace)).contains("traceEvents"));
}

TEST_F(TrainFaultsTest, TooLittleMemoryIsRefusedNamingWhatWorks) {
  const Ended ended = run(train({"--iters", "2", "--memory-limit", "0.0001"}, "out", 2));
  EXPECT_NE(ended.code, 0);
  const std::string said = ended.error + ended.output;
  EXPECT_THAT(said, AllOf(HasSubstr("memory_limit: a step takes at least"), HasSubstr("MiB"), HasSubstr("[1] trunk")));
  EXPECT_FALSE(fs::exists(output() / "metrics.jsonl"));
  const Ended enough = run(train({"--iters", "2", "--memory-limit", least_limit(ended)}, "enough", 2));
  EXPECT_EQ(enough.code, 0) << enough.error;
  EXPECT_THAT(enough.output, HasSubstr("MiB, of at most"));
}

TEST_F(TrainFaultsTest, AnOutputInUseIsRefused) {
  ASSERT_EQ(run(train({"--iters", "1"})).code, 0);
  const std::string before = weights();
  Ended ended = run(train({"--iters", "1"}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.error, AllOf(HasSubstr("already holds"), HasSubstr("--resume")));
  EXPECT_EQ(weights(), before);
  // A name that may be mistyped begins no run.
  fs::create_directories(output("empty"));
  fs::create_directories(output("other"));
  write_file(output("other") / "letter.txt", "");
  for (const auto& [out, why] :
       {std::pair("nowhere", "no such directory"), {"empty", "is empty"}, {"other", "nothing"}}) {
    const bool there = fs::exists(output(out));
    ended = run(train({"--iters", "1", "--resume"}, out));
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.error, AllOf(HasSubstr("holds no run to go on with: "), HasSubstr(why)));
    EXPECT_EQ(fs::exists(output(out)), there);
  }
  ended = run(train({"--iters", "1", "--resume", "--output", data() / "train.jsonl"}));
  EXPECT_THAT(ended.error, HasSubstr("train.jsonl is not a directory"));
}

// Checkpoints are what is gone on from; where a run died before its first one, it begins again, with metrics of its
// own.
TEST_F(TrainFaultsTest, WhatIsGoneOnWithAreCheckpoints) {
  ASSERT_EQ(run(train({"--iters", "2"})).code, 0);
  fs::remove(output() / "settings.yaml");
  Ended ended = run(train({"--iters", "3", "--resume"}));
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.output, HasSubstr("going on from step 2"));
  EXPECT_TRUE(fs::exists(output() / "settings.yaml"));

  for (const char* left : {".lock", "settings.yaml", "metrics.jsonl"}) {
    for (const bool resume : {true, false}) {
      const std::string out = fmt::format("{}-{}", left + 1, resume);
      fs::create_directories(output(out));
      write_file(output(out) / left, R"({"step": 0, "val_loss": 1.5})"
                                     "\n");
      ended = run(train(
          with({"--iters", "1"}, resume ? std::vector<std::string>{"--resume"} : std::vector<std::string>{}), out));
      EXPECT_EQ(ended.code, 0) << ended.error;
      ASSERT_EQ(metrics(out).size(), 3u) << left;  // a validation, the step, a validation
      EXPECT_NE(metrics(out)[0]["val_loss"], 1.5);
    }
  }
}

TEST_F(TrainFaultsTest, DamagedMetricsAreToldAndTheRestIsKept) {
  ASSERT_EQ(run(train({"--iters", "4", "--val-batches", "0", "--save-every", "1", "--keep", "4"})).code, 0);
  const fs::path path = output() / "metrics.jsonl";
  std::vector<std::string> lines;
  std::istringstream text(read_file(path));
  for (std::string line; std::getline(text, line);) lines.push_back(line + "\n");
  ASSERT_EQ(lines.size(), 4u);
  const auto resumed = [&](const std::string& bytes) {
    fs::remove_all(output("again"));
    fs::copy(output(), output("again"), fs::copy_options::recursive);
    write_file(output("again") / "metrics.jsonl", bytes);
    const Ended ended = run(train({"--iters", "5", "--val-batches", "0", "--resume"}, "again"));
    EXPECT_EQ(ended.code, 0) << ended.error;
    return ended.output;
  };
  EXPECT_THAT(resumed(lines[0] + "{\"step\": \xff\x01\n" + lines[2] +
                      R"({"step": "4"})"
                      "\n"),
              AllOf(HasSubstr("metrics.jsonl: 2 damaged lines were dropped, the first of them line 2"),
                    HasSubstr("no lines of step 4 are there")));
  EXPECT_TRUE(read_file(output("again") / "metrics.jsonl").starts_with(lines[0] + lines[2] + "{\"step\":5,"));
  EXPECT_THAT(resumed(lines[0] + lines[1] + lines[2].substr(0, 30)),
              AllOf(Not(HasSubstr("damaged")), HasSubstr("no lines of steps 3 to 4 are there")));
  // What a crash leaves of a step that is made again is no loss.
  EXPECT_THAT(resumed(lines[0] + lines[1] + lines[2] + lines[3] + "{\"step\": 5, \"lo"),
              Not(HasSubstr("metrics.jsonl:")));
}

// A full disk, in a checkpoint and in the model at the end: each rank says where it stands and how to go on.
TEST_F(TrainFaultsTest, WhatEndsARunFromOutsideIsToldWithHowToGoOn) {
  ASSERT_EQ(run(train({"--iters", "2"})).code, 0);
  const std::string tail = fmt::format(
      "; the last good checkpoint is {}/checkpoints/2: with the cause put right, the same command with --resume goes "
      "on "
      "from it",
      output().string());
  const auto times_said = [&](const std::string& text) {
    size_t times = 0;
    for (size_t at = text.find(tail); at != std::string::npos; at = text.find(tail, at + 1)) ++times;
    return times;
  };
  for (const int ranks : {1, 2}) {
    ProcessOptions options = train({"--iters", "4", "--resume"}, "out", ranks);
    const std::vector<std::string> limited = {"/bin/sh", "-c", "trap '' XFSZ; ulimit -f 24; exec \"$0\" \"$@\""};
    options.argv.insert(options.argv.begin(), limited.begin(), limited.end());
    const Ended ended = run(options);
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.error, HasSubstr("checkpoints/4.part/weights.safetensors: File too large"));
    EXPECT_EQ(times_said(ended.error), static_cast<size_t>(ranks)) << ended.error;
  }
  fs::remove(output() / "model.safetensors");
  fs::create_directories(output() / "model.safetensors" / "in the way");
  for (const int ranks : {1, 2}) {
    const Ended ended = run(train({"--iters", "2", "--resume"}, "out", ranks));
    EXPECT_EQ(ended.code, 1);
    EXPECT_EQ(times_said(ended.error), static_cast<size_t>(ranks)) << ended.error;
  }
}

// Every file in a folder, and its bytes.
std::map<std::string, std::string> files_in(const fs::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) files[entry.path().string()] = read_file(entry.path());
  }
  return files;
}

TEST_F(TrainFaultsTest, AResumeWithoutAGoodCheckpointWritesNothingOver) {
  const std::vector<std::string> arguments = {"--iters", "2", "--save-every", "1", "--resume"};
  ASSERT_EQ(run(train({"--iters", "2", "--save-every", "1"})).code, 0);
  fs::copy(output(), output("moved"), fs::copy_options::recursive);
  fs::remove_all(output("moved") / "checkpoints");
  auto before = files_in(output("moved"));
  Ended ended = run(train(arguments, "moved"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.error, AllOf(HasSubstr("holds a model ("), HasSubstr("nothing to go on from"),
                                 HasSubstr("another --output (--model")));
  EXPECT_EQ(files_in(output("moved")), before);

  // Damaged ones, without a model: set aside, and refused again and again.
  fs::copy(output(), output("damaged"), fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(output("damaged"))) {
    if (entry.is_regular_file() && entry.path().filename() != "settings.yaml") fs::remove(entry.path());
  }
  for (const char* step : {"1", "2"}) write_file(output("damaged") / "checkpoints" / step / "state.json", "{}");
  for (int i = 0; i < 2; ++i) {
    ended = run(train(arguments, "damaged", 2));
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.error + ended.output, AllOf(HasSubstr("holds checkpoints"),
                                                  HasSubstr("no checkpoint that is whole"), HasSubstr("[1] trunk")));
    EXPECT_TRUE(fs::exists(output("damaged") / "checkpoints" / "2.damaged" / "weights.safetensors"));
    EXPECT_FALSE(fs::exists(output("damaged") / "model.safetensors"));
  }
  fs::remove_all(output("damaged") / "checkpoints");
  ended = run(train(arguments, "damaged"));
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.output, HasSubstr("it begins again"));
}

TEST_F(TrainFaultsTest, AFinishedRunHasNothingLeftToTrain) {
  const std::vector<std::string> arguments = {"--iters", "2"};
  for (const char* kind : {"full", "lora"}) {
    const auto settings = with(arguments, {"--fine-tune-type", kind});
    ASSERT_EQ(run(train(settings, kind, 2)).code, 0);
    const auto before = files_in(output(kind));
    const Ended ended = run(train(with(settings, {"--resume"}), kind, 2));
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_THAT(ended.output, HasSubstr("nothing left to train: 2 steps are done"));
    EXPECT_EQ(files_in(output(kind)), before);
  }
  // A model that is not that of the last step is saved again.
  const std::string good = weights("full");
  std::string bad = good;
  bad.back() = static_cast<char>(bad.back() ^ 1);
  write_file(output("full") / "model.safetensors", bad);
  EXPECT_EQ(run(train(with(arguments, {"--resume"}), "full")).code, 0);
  EXPECT_EQ(weights("full"), good);
}

TEST_F(TrainFaultsTest, AResumedRunMustBeTheSameRun) {
  ASSERT_EQ(run(train({"--iters", "1"})).code, 0);
  Ended ended = run(train({"--iters", "3", "--resume", "--learning-rate", "1e-3", "--seed", "5"}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.error,
              AllOf(HasSubstr("learning_rate: 1e-05 there, 0.001 here"), HasSubstr("seed: 0 there, 5 here")));
  // Another model of the same shape; the same elsewhere is taken.
  fs::copy(model(), folder_ / "model2");
  ended = run(train({"--iters", "2", "--resume", "--model", folder_ / "model2"}));
  EXPECT_EQ(ended.code, 0) << ended.error;
  write_tiny_weights(folder_ / "model2", [](const std::string& name, mx::array& value) {
    if (name == "model.norm.weight") value = mx::multiply(value, mx::array(1.001f));
  });
  ended = run(train({"--iters", "3", "--resume", "--model", folder_ / "model2"}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.error, HasSubstr("base weights: checksum"));
  write_rows("train.jsonl", 24, 8);
  ended = run(train({"--iters", "3", "--resume"}));
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.error, HasSubstr("train.jsonl: 24 rows"));
}

TEST_F(TrainFaultsTest, AnOutputThatCannotBeMadeIsNamed) {
  write_file(output(), "");
  const Ended ended = run(train({"--iters", "1"}, "out/within"));
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.error, fmt::format("trunkline: --output: cannot make the directory {}: Not a directory\n",
                                     (output() / "within").string()));
}

TEST_F(TrainFaultsTest, ALinkToNoDataIsNamed) {
  for (const char* file : {"valid.jsonl", "test.jsonl"}) {
    fs::remove(data() / file);
    fs::create_symlink("nowhere.jsonl", data() / file);
    const Ended ended = run(train({"--iters", "1", "--test"}));
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.error, HasSubstr((data() / file).string() + ": a link to a file that is not there"));
    fs::remove(data() / file);
  }
}

TEST_F(TrainFaultsTest, FaultsOfTheCommandLineEndWithAReason) {
  EXPECT_EQ(run(train({"--batchsize", "3"})).code, 2);
  const Ended ended = run(train({"--batch-size", "0"}));
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.error, HasSubstr("--batch-size: 0 is less than 1"));
  EXPECT_THAT(ended.error, StartsWith("trunkline: --batch-size"));
  const Ended folder = run(train({"-c", data()}));
  EXPECT_EQ(folder.code, 2);
  EXPECT_THAT(folder.error, AllOf(HasSubstr(data().string()), HasSubstr("Is a directory")));
  const Ended missing = run(train({"--model", "/nowhere"}));
  EXPECT_NE(missing.code, 0);
}

}  // namespace
}  // namespace trunkline

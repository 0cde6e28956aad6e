// What a run watches as it goes: spikes, the best validation, its output, and signals.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>

#include "tiny_run_test.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using TrainWatchTest = TinyRun;

const std::vector<std::string> kSpikes = {"--iters",          "24", "--batch-size", "2",  "--learning-rate", "0.001",
                                          "--skip-window",    "4",  "--save-every", "12", "--val-batches",   "-1",
                                          "--steps-per-eval", "1"};

// The steps whose update the metrics say was left out: where skipped_steps grew.
std::vector<int64_t> skipped(const std::vector<nlohmann::json>& metrics) {
  std::vector<int64_t> steps;
  int64_t before = 0;
  for (const auto& line : metrics) {
    if (!line.contains("skipped_steps")) continue;
    if (line["skipped_steps"] > before) steps.push_back(line["step"]);
    before = line["skipped_steps"];
  }
  return steps;
}

// Which steps' values lie more than `limit` deviations above the window of 4 before.
std::vector<int64_t> spikes_of(const std::vector<nlohmann::json>& metrics, const char* key, double limit) {
  std::vector<double> values;
  std::vector<int64_t> steps;
  for (const auto& line : metrics) {
    if (!line.contains("target_tokens")) continue;
    const double value = line[key];
    if (values.size() >= 4) {
      double mean = 0.0, variance = 0.0;
      for (size_t i = values.size() - 4; i < values.size(); ++i) mean += values[i] / 4;
      for (size_t i = values.size() - 4; i < values.size(); ++i)
        variance += (values[i] - mean) * (values[i] - mean) / 4;
      if (value > mean + limit * std::sqrt(variance)) steps.push_back(line["step"]);
    }
    values.push_back(value);
  }
  return steps;
}

void expect_no_update_where_skipped(const std::vector<nlohmann::json>& metrics) {
  const std::vector<int64_t> steps = skipped(metrics);
  std::map<int64_t, double> losses;
  for (const auto& line : metrics) {
    if (line.contains("val_loss")) losses[line["step"]] = line["val_loss"];
  }
  int64_t trained = 0;
  for (const auto& line : metrics) {
    if (!line.contains("target_tokens")) continue;
    const int64_t step = line["step"];
    const bool left_out = std::ranges::find(steps, step) != steps.end();
    EXPECT_EQ(losses.at(step) == losses.at(step - 1), left_out) << step;
    if (!left_out) trained += line["target_tokens"].get<int64_t>();
    EXPECT_EQ(line["trained_tokens"], trained);
  }
}

TEST_F(TrainWatchTest, AStepWithASpikeOfTheLossIsSkippedOnAllRanksAlike) {
  const auto watching = with(kSpikes, {"--skip-loss-z", "1"});
  const Ended one = run(train(watching, "one"));
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_THAT(one.output, HasSubstr("no update: its loss, "));
  const auto lines = metrics("one");
  EXPECT_FALSE(skipped(lines).empty());
  EXPECT_EQ(skipped(lines), spikes_of(lines, "loss", 1.0));
  expect_no_update_where_skipped(lines);
  for (const auto& line : lines) {
    if (line.contains("grad_norm")) {
      const auto steps = skipped(lines);
      EXPECT_EQ(line["grad_norm"].is_null(), std::ranges::find(steps, line["step"].get<int64_t>()) != steps.end());
    }
  }
  for (const auto& [other, arguments, ranks] :
       {std::tuple("ranks", std::vector<std::string>{}, 3), {"whole-graph", {"--whole-graph"}, 2}}) {
    ASSERT_EQ(run(train(with(watching, arguments), other, ranks)).code, 0);
    EXPECT_EQ(skipped(metrics(other)), skipped(lines)) << other;
    EXPECT_LT(largest_difference("one", other), 1e-4) << other;
  }
}

TEST_F(TrainWatchTest, AStepWithASpikeOfTheGradientIsSkipped) {
  const Ended ended = run(train(with(kSpikes, {"--skip-grad-z", "1"}), "out", 2));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("gradients are held until all have been checked"),
                                  HasSubstr("no update: its gradient norm, ")));
  EXPECT_FALSE(skipped(metrics()).empty());
  EXPECT_EQ(skipped(metrics()), spikes_of(metrics(), "grad_norm", 1.0));
  expect_no_update_where_skipped(metrics());
}

TEST_F(TrainWatchTest, AResumedRunKnowsItsWindowsAndItsBest) {
  const auto watching =
      with(kSpikes, {"--skip-grad-z", "1.2", "--skip-loss-z", "1.2", "--keep-best", "--early-stopping-patience", "9"});
  ASSERT_EQ(run(train(watching, "whole")).code, 0);
  const std::vector<int64_t> steps = skipped(metrics("whole"));
  ASSERT_FALSE(steps.empty());
  EXPECT_GT(steps.back(), 12);
  ASSERT_EQ(run(train(with(watching, {"--iters", "12"}), "cut")).code, 0);
  const Ended resumed = run(train(with(watching, {"--resume"}), "cut"));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  EXPECT_EQ(weights("cut"), weights("whole"));
  const auto a = metrics("whole"), b = metrics("cut");
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    for (const char* key : {"step", "loss", "grad_norm", "val_loss", "skipped_steps", "best_val_loss", "best_step"}) {
      EXPECT_EQ(a[i].value(key, nlohmann::json()), b[i].value(key, nlohmann::json())) << i << " " << key;
    }
  }
}

// A learning rate that soon spoils the model: the first steps are the best.
TEST_F(TrainWatchTest, ARunEndsEarlyAndSavesItsBest) {
  const std::vector<std::string> settings = {"--iters",
                                             "200",
                                             "--batch-size",
                                             "24",
                                             "--learning-rate",
                                             "0.3",
                                             "--val-batches",
                                             "-1",
                                             "--keep",
                                             "1",
                                             "--save-every",
                                             "3",
                                             "--steps-per-eval",
                                             "2",
                                             "--early-stopping-patience",
                                             "3",
                                             "--load-best-model-at-end",
                                             "--test"};
  fs::copy_file(data() / "valid.jsonl", data() / "test.jsonl");
  const Ended ended = run(train(settings, "out", 2));
  ASSERT_EQ(ended.code, 0) << ended.error;
  const auto lines = metrics();
  double best = 1e9;
  int64_t best_step = 0, last = 0;
  for (const auto& line : lines) {
    last = line["step"];
    if (!line.contains("val_loss") || line["step"] == 0) continue;
    if (line["val_loss"] < best) {
      best = line["val_loss"];
      best_step = line["step"];
    }
    EXPECT_EQ(line["best_val_loss"], best);
    EXPECT_EQ(line["best_step"], best_step);
  }
  EXPECT_EQ(last, best_step + 6);  // three validations later
  EXPECT_LT(last, 200);
  EXPECT_THAT(ended.output, AllOf(HasSubstr(fmt::format("early stopping after step {}", last)),
                                  HasSubstr(fmt::format("the model is that of step {}", best_step))));
  EXPECT_NEAR(lines.back()["test_loss"].get<double>(), best, 1e-9);  // of the model that was saved
  // Both the newest checkpoint and the best are there.
  EXPECT_TRUE(fs::exists(output() / "checkpoints" / std::to_string(last) / "manifest.json"));
  EXPECT_TRUE(fs::exists(output() / "checkpoints" / std::to_string(best_step) / "manifest.json"));
  const SafetensorsFile checkpoint(output() / "checkpoints" / std::to_string(best_step) / "weights.safetensors");
  const Checkpoint saved = load_checkpoint(output());
  for (size_t i = 0; i < saved.tensors.size(); ++i) {
    const mx::array expected = checkpoint.load(saved.layout[i].name);
    EXPECT_TRUE(mx::array_equal(saved.tensors[i], expected).item<bool>());
  }
  // Asked to go on, it is as it ended; with more patience it goes on.
  const std::string before = weights();
  const Ended again = run(train(with(settings, {"--resume"}), "out", 2));
  ASSERT_EQ(again.code, 0) << again.error;
  EXPECT_THAT(again.output, HasSubstr(fmt::format("early stopping after step {}", last)));
  EXPECT_EQ(weights(), before);
  const Ended more = run(train(
      with(settings, {"--resume", "--early-stopping-patience", "4", "--early-stopping-threshold", "0.5"}), "out", 2));
  ASSERT_EQ(more.code, 0) << more.error;
  EXPECT_THAT(more.output, HasSubstr(fmt::format("early stopping after step {}", last + 2)));
}

// Ends three validations after the best, which is not the last step's then.
const std::vector<std::string> kSoonSpoilt = {
    "--iters", "200", "--batch-size",     "24", "--learning-rate",           "0.3", "--val-batches", "-1",
    "--keep",  "1",   "--steps-per-eval", "1",  "--early-stopping-patience", "3"};

// The step of the best validation, and the last one.
std::pair<int64_t, int64_t> best_and_last(const std::vector<nlohmann::json>& metrics) {
  std::pair<int64_t, int64_t> found;
  for (const auto& line : metrics) {
    found.first = line.value("best_step", found.first);
    found.second = line["step"];
  }
  return found;
}

// A best checkpoint that is damaged or gone is told at the start, and what is saved instead; nothing is written over.
TEST_F(TrainWatchTest, ALostBestIsToldAtTheStart) {
  const auto settings = with(kSoonSpoilt, {"--save-every", "4", "--load-best-model-at-end"});
  ASSERT_EQ(run(train(settings, "whole")).code, 0);
  const auto [best, last] = best_and_last(metrics("whole"));
  ASSERT_LT(best, last);
  const std::string of_best = weights("whole");
  const auto copy_of_whole = [&](const char* name) {
    fs::copy(output("whole"), output(name), fs::copy_options::recursive);
    return output(name) / "checkpoints" / std::to_string(best);
  };
  const std::string lost = fmt::format("warning: there is no checkpoint of the best validation so far, ");
  const std::string set_aside = fmt::format("warning: checkpoint {} is damaged and was set aside as ", best);
  const auto cut = [](const fs::path& checkpoint) { fs::resize_file(checkpoint / "weights.safetensors", 100); };

  // The model is gone too: that of the last step is saved.
  fs::path checkpoint = copy_of_whole("damaged");
  cut(checkpoint);
  fs::remove(output("damaged") / "model.safetensors");
  const Ended saved = run(train(with(settings, {"--resume"}), "damaged", 2));
  ASSERT_EQ(saved.code, 0) << saved.error;
  EXPECT_THAT(saved.output, AllOf(HasSubstr(set_aside), HasSubstr(lost),
                                  HasSubstr(": the model that is saved is that of the last step")));
  EXPECT_TRUE(fs::exists(checkpoint.string() + ".damaged"));
  const SafetensorsFile newest(output("damaged") / "checkpoints" / std::to_string(last) / "weights.safetensors");
  const SafetensorsFile model(output("damaged") / "model.safetensors");
  for (const auto& [name, tensor] : model.tensors()) {
    EXPECT_TRUE(mx::array_equal(model.load(name), newest.load(name)).item<bool>()) << name;
  }
  // Again, it is as it was saved.
  EXPECT_EQ(run(train(with(settings, {"--resume"}), "damaged")).code, 0);

  // A model that is there may be the best one: it stays.
  cut(copy_of_whole("kept"));
  for (int i = 0; i < 2; ++i) {
    const Ended kept = run(train(with(settings, {"--resume"}), "kept"));
    EXPECT_EQ(kept.code, 1);
    EXPECT_THAT(kept.error, AllOf(HasSubstr("model.safetensors"), HasSubstr("stays as it is")));
    EXPECT_EQ(weights("kept"), of_best);
  }

  // With steps left to do it is told before them.
  fs::remove_all(copy_of_whole("longer"));
  const Ended longer = run(train(with(settings, {"--resume", "--early-stopping-patience", "4"}), "longer"));
  ASSERT_EQ(longer.code, 0) << longer.error;
  const size_t told = longer.output.find(lost), first_step = longer.output.find(fmt::format("step {}/", last + 1));
  EXPECT_LT(told, first_step) << longer.output;
  EXPECT_THAT(longer.output,
              HasSubstr("unless a later one is better, the model that is saved is that of the last step"));
}

// Never kept by the run that is gone on with: told too.
TEST_F(TrainWatchTest, ABestThatWasNotKeptIsTold) {
  ASSERT_EQ(run(train(kSoonSpoilt)).code, 0);
  const auto [best, last] = best_and_last(metrics());
  ASSERT_FALSE(fs::exists(output() / "checkpoints" / std::to_string(best)));
  const Ended ended =
      run(train(with(kSoonSpoilt, {"--early-stopping-patience", "4", "--resume", "--load-best-model-at-end"})));
  ASSERT_EQ(ended.code, 0) << ended.error;
  EXPECT_LT(ended.output.find(fmt::format("warning: there is no checkpoint of the best validation so far, ")),
            ended.output.find(fmt::format("step {}/", last + 1)))
      << ended.output;
}

// The same of an adapter, with packed rows.
TEST_F(TrainWatchTest, AnAdapterIsWatchedToo) {
  const std::vector<std::string> settings = {"--fine-tune-type",
                                             "lora",
                                             "--learning-rate",
                                             "0.3",
                                             "--batch-size",
                                             "2",
                                             "--packing",
                                             "--max-seq-length",
                                             "200",
                                             "--skip-grad-z",
                                             "1.5",
                                             "--skip-window",
                                             "3",
                                             "--val-batches",
                                             "-1",
                                             "--steps-per-eval",
                                             "1",
                                             "--lora-dropout",
                                             "0.1",
                                             "--save-every",
                                             "5"};
  const auto best = with(settings, {"--load-best-model-at-end", "--early-stopping-patience", "5"});
  const Ended whole = run(train(with(best, {"--iters", "60"}), "whole", 2));
  ASSERT_EQ(whole.code, 0) << whole.error;
  EXPECT_FALSE(skipped(metrics("whole")).empty());
  const int64_t best_step = metrics("whole").back()["best_step"], last = metrics("whole").back()["step"];
  EXPECT_EQ(last, std::min<int64_t>(60, best_step + 5));  // such losses wander, differently on every machine
  ASSERT_EQ(run(train(with(best, {"--iters", "5"}), "cut", 2)).code, 0);
  const Ended resumed = run(train(with(best, {"--iters", "60", "--resume"}), "cut", 2));
  ASSERT_EQ(resumed.code, 0) << resumed.error;
  ASSERT_EQ(run(train(with(settings, {"--iters", std::to_string(best_step)}), "until-best", 2)).code, 0);
  const auto adapter = [&](const char* name) { return read_file(output(name) / "adapter_model.safetensors"); };
  EXPECT_EQ(adapter("whole"), adapter("cut"));
  EXPECT_EQ(adapter("whole"), adapter("until-best"));
}

// SIGTERM to one rank ends the run on all, after the step; SIGTERM again changes nothing.
TEST_F(TrainWatchTest, SigtermFinishesTheStepAndSaves) {
  const std::vector<std::string> endless = {"--iters", "100000", "--steps-per-report", "1", "--batch-size", "4"};
  Process process = Process::start(train(endless));
  read_until(process, "step 3/");
  process.signal(SIGTERM);
  process.signal(SIGTERM);
  const Ended ended = finish(process);
  EXPECT_EQ(ended.code, 130) << ended.error;
  EXPECT_THAT(ended.output, AllOf(HasSubstr("interrupted after step "), HasSubstr("--resume")));
  const int64_t last = metrics().back()["step"];
  EXPECT_TRUE(fs::exists(output() / "checkpoints" / std::to_string(last) / "manifest.json"));
  // Under the launcher, which gives its ranks 3 s.
  Process job = Process::start(train(endless, "job", 2));
  read_until(job, "step 3/");
  job.signal(SIGTERM);
  const Ended job_ended = finish(job);
  EXPECT_EQ(job_ended.code, 128 + SIGTERM);
  EXPECT_THAT(job_ended.output, HasSubstr("interrupted after step "));
  const int64_t job_last = metrics("job").back()["step"];
  EXPECT_TRUE(fs::exists(output("job") / "checkpoints" / std::to_string(job_last) / "manifest.json"));
}

// While rows are tokenized too: nothing is left, and nobody says anything but that.
TEST_F(TrainWatchTest, AnInterruptWhileRowsAreTokenizedLeavesNothing) {
  const fs::path python = folder_ / "python", started = folder_ / "started";
  write_file(python,
             fmt::format("#!/bin/sh\ntouch {}\nsleep 0.7\nexec {} \"$@\"\n", started.string(), TRUNKLINE_TEST_PYTHON),
             0777);
  const auto start = [&](const char* out, int ranks) {
    fs::remove(started);
    ProcessOptions options = train({"--iters", "2"}, out, ranks);
    options.environment.emplace_back("TRUNKLINE_PYTHON", python.string());
    options.own_group = ranks == 1;  // the tokenizer's process gets the signal too
    Process process = Process::start(options);
    const Deadline deadline = Deadline::after(std::chrono::seconds(30));
    while (!fs::exists(started) && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return process;
  };
  for (const auto& [number, ranks] : {std::pair(SIGINT, 1), {SIGTERM, 1}, {SIGINT, 2}}) {
    Process process = start("out", ranks);
    process.signal(number);
    const Ended ended = finish(process);
    EXPECT_EQ(ended.code, 130) << ended.error;
    EXPECT_THAT(ended.output, HasSubstr("interrupted before the first step: nothing was trained"));
    if (ranks == 1) {
      EXPECT_EQ(ended.error, "");
    }
    EXPECT_FALSE(fs::exists(output()));
  }
  // One that is killed cannot say anything, and its tokenizer does not either.
  Process process = start("out", 1);
  ::kill(process.pid(), SIGKILL);
  EXPECT_EQ(finish(process).error, "");
}

TEST_F(TrainWatchTest, TwoRunsInOneOutputAreKeptApart) {
  const std::vector<std::string> endless = {"--iters", "100000", "--steps-per-report", "1", "--save-every", "2"};
  Process process = Process::start(train(endless));
  read_until(process, "checkpoints/2");
  for (const bool resume : {false, true}) {
    const Ended second =
        run(train(with(endless, resume ? std::vector<std::string>{"--resume"} : std::vector<std::string>{})));
    EXPECT_EQ(second.code, 1);
    EXPECT_THAT(second.error, HasSubstr(resume ? fmt::format("is in use by another run, process {} on ", process.pid())
                                               : std::string("already holds checkpoints")));
  }
  process.signal(SIGINT);
  EXPECT_EQ(finish(process).code, 130);
  EXPECT_FALSE(fs::exists(output() / ".lock"));
  // Before the first checkpoint too.
  Process early = Process::start(train({"--iters", "100000", "--steps-per-report", "1"}, "early"));
  read_until(early, "step 1/");
  const Ended second = run(train({"--iters", "2"}, "early"));
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.error, HasSubstr("is in use by another run"));
  early.signal(SIGKILL);
  EXPECT_EQ(finish(early).code, 128 + SIGKILL);
  EXPECT_EQ(run(train({"--iters", "2"}, "early")).code, 0);
}

TEST_F(TrainWatchTest, AnOutputThatIsTakenAwayEndsTheRun) {
  Process process = Process::start(train({"--iters", "100000", "--steps-per-report", "1"}, "out", 2));
  read_until(process, "step 2/");
  fs::rename(output(), output("elsewhere"));
  const Ended ended = finish(process);
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.error, AllOf(HasSubstr("[0] trunkline: "), HasSubstr("[1] trunkline: "),
                                 HasSubstr("was removed, renamed or replaced")));
  EXPECT_FALSE(fs::exists(output() / "checkpoints"));
  // And what lies there may not be what a run writes to.
  fs::create_directories(output("device"));
  fs::create_symlink("/dev/zero", output("device") / "metrics.jsonl");
  const Ended device = run(train({"--iters", "1"}, "device"));
  EXPECT_EQ(device.code, 1);
  EXPECT_THAT(device.error, HasSubstr("metrics.jsonl is not a regular file"));
}

TEST_F(TrainWatchTest, WatchingValidationNeedsOne) {
  const Ended none = run(train({"--iters", "2", "--val-batches", "0", "--keep-best"}));
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.error, HasSubstr("--val-batches: 0 is no validation, and --keep-best needs one"));
  std::filesystem::remove(data() / "valid.jsonl");
  for (const char* option : {"--early-stopping-patience=2", "--load-best-model-at-end"}) {
    const Ended ended = run(train({"--iters", "2", option}));
    EXPECT_EQ(ended.code, 1);
    EXPECT_THAT(ended.error, HasSubstr("needs a validation, and there is none"));
  }
}

}  // namespace
}  // namespace trunkline

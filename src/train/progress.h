// What a run tells as it goes: lines for a person, and OUTPUT/metrics.jsonl for programs. Rank 0's job.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/clock.h"
#include "train/run_state.h"
#include "train/step.h"

namespace trunkline {

class Progress {
 public:
  // `quiet`: says and writes nothing (the other ranks). A throughput line every `steps_per_report` steps.
  Progress(const std::filesystem::path& output, int64_t total, int64_t steps_per_report, bool quiet);

  // Before anything is written to metrics.jsonl, which is a new file unless steps are `done`. Of a resumed run, lines
  // past them are dropped, since it makes these steps again; `warnings` tells of damaged lines and of steps without
  // one.
  void open(int64_t done, std::vector<std::string>& warnings);

  // `seconds`: what the step took, without validation and saving.
  void step(const RunState& state, const StepResult& result, double learning_rate, double seconds);
  // Why step `number` had no update: `watch` found its loss or the norm of its gradients, `value`, to be a spike.
  void spike(int64_t number, const char* what, double value, const SpikeWatch& watch);
  // `name`: "val" or "test". `best`: of the validations so far, this one included, if there is one.
  void loss(int64_t number, const char* name, double loss, double seconds, const BestLoss& best = {});
  // Where the time of the steps went, as a mean: forward, backward, exposed communication, update; and the most memory.
  void breakdown();
  // A line for a person.
  void say(const std::string& line);

 private:
  struct Window {  // since the last report
    double loss = 0.0, seconds = 0.0;
    int64_t targets = 0;
    double hidden = 0.0;  // of communication, the mean of steps that had some to hide
    int64_t hidden_steps = 0;
  };
  std::string describe(int64_t number, const Window& window, double learning_rate) const;

  void write(const std::string& line);  // to metrics.jsonl

  bool quiet_, terminal_;
  std::filesystem::path metrics_path_;
  int64_t total_, steps_per_report_;
  double seconds_ = 0.0;  // of all steps here
  int64_t steps_ = 0;
  int64_t device_peak_ = 0;  // bytes taken at the end of a step, 0 where the device does not tell
  double forward_ = 0.0, backward_ = 0.0, exposed_ = 0.0, update_ = 0.0;
  Window window_;
  bool line_open_ = false;  // a line on the terminal that will be written over
  std::ofstream metrics_;
};

}  // namespace trunkline

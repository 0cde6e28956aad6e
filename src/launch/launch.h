// Starts the ranks of a job on this machine, carries their output, and ends with all of them gone. docs/launch.md says
// what is promised.
#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cluster/cables.h"

namespace trunkline {

// How long each step of an ending may take.
struct Patience {
  // A crash so soon after an exit is its cause: a rank's connections end before it does, and whom they tell may be gone
  // first.
  std::chrono::milliseconds same_moment{1'000};
  std::chrono::milliseconds after_failure{6'000};    // for the other ranks to say what they saw and end
  std::chrono::milliseconds after_terminate{3'000};  // from SIGTERM to SIGKILL
  std::chrono::milliseconds after_end{1'000};        // for what ended ranks have left: output, processes
};

struct LaunchOptions {
  int ranks = 1;
  std::vector<std::string> program;     // and its arguments
  std::filesystem::path log_directory;  // one file a rank, rank-R.log, written anew; empty: none
  std::optional<Wiring> wiring;         // emulated cables between the ranks
  Patience patience;
  int output = 1;  // where ranks' standard output goes, line by line as "[R] LINE"
  int error = 2;   // the same for standard error, and the launcher's own messages
};

// The exit code that the whole job has: 0 when every rank's was, that of the first to fail (128 + signal; see
// Patience), 127 for a program that is not there, 128 + signal when one ended the job. Throws Error for what keeps
// ranks from being started.
int launch(const LaunchOptions& options);

}  // namespace trunkline

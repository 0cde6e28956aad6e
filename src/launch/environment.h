// What ranks find in their environment: their place in the job and the way to each other. docs/launch.md has the table.
#pragma once

#include <optional>
#include <string>

#include "base/fd.h"
#include "base/process.h"
#include "base/settings.h"

namespace trunkline {

// Where the ranks of a job on this machine meet: a socket that listens on loopback already when they start, so that
// none comes too early and nobody else can take the port, and a key that tells them from strangers.
struct Rendezvous {
  Fd socket;        // rank 0 inherits it
  int port = 0;     // on 127.0.0.1
  std::string key;  // 64 random hex digits
};

Rendezvous open_rendezvous(int ranks);

struct Terminal {
  int columns = 0;
  int lines = 0;
};

// Of the first of these descriptors that is a terminal with a size.
std::optional<Terminal> terminal_size(int output, int error);

// The changes to the launcher's own environment for one rank. `threads`: its share of the cores; a number of threads
// that the user has set stays.
decltype(ProcessOptions::environment) rank_environment(int rank, int size, const Rendezvous& rendezvous, int threads,
                                                       std::optional<Terminal> terminal, const Settings& settings);

}  // namespace trunkline

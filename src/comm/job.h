// Job: what all groups of this rank share. A group is a team and a count of its operations on top of it.
#pragma once

#include <functional>
#include <memory>

#include "comm/calls.h"
#include "comm/lanes.h"
#include "comm/transport.h"
#include "comm/watch.h"
#include "plan/collectives.h"
#include "plan/ring.h"

namespace trunkline {

class Job {
 public:
  // Where not every pair of ranks has a path, `paths` says which have.
  explicit Job(const Config& config) : Job(config, paths_of(config)) {}
  Job(const Config& config, Paths paths) : Job(config, std::move(paths), connect_ranks(config)) {}
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Watch& watch() { return watch_; }
  Lanes& lanes() { return lanes_; }
  Calls& calls() { return calls_; }
  // Wanted for all-reduce.
  Algorithm algorithm() const { return algorithm_; }

  // Cables between the ranks of the job; the same on all of them.
  const Paths& paths() const { return paths_; }

  // One lane's share of a message, or of each of its blocks.
  struct Share {
    size_t lane, lanes;
    Range of(size_t bytes) const { return part_of(bytes, lanes, lane); }
  };
  // `team`: those without whom it cannot be done. Runs f(channel, share) on each lane that a message of so many bytes
  // has a stripe for.
  void run(const Operation& operation, const Team& team, size_t bytes,
           const std::function<void(Channel&, const Share&)>& f);

  // The first number that is not a group's yet, as far as this rank knows.
  uint32_t next_group = 1;

 private:
  Job(const Config& config, Paths paths, Connections connections);

  const Algorithm algorithm_;
  const size_t trunking_from_;
  const Paths paths_;
  Watch watch_;
  Lanes lanes_;
  Calls calls_;  // last: its thread uses all of the above
};

// The group of all ranks of a job.
std::shared_ptr<Group> group_of(std::shared_ptr<Job> job);

}  // namespace trunkline

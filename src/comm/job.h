// Job: what all groups of this rank share. A group is a team and a count of its operations on top of it.
#pragma once

#include <functional>
#include <memory>

#include "comm/calls.h"
#include "comm/lanes.h"
#include "comm/transport.h"
#include "comm/watch.h"
#include "plan/collectives.h"

namespace trunkline {

class Job {
 public:
  explicit Job(const Config& config) : Job(config, connect_ranks(config)) {}
  ~Job();
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Watch& watch() { return watch_; }
  Lanes& lanes() { return lanes_; }
  Calls& calls() { return calls_; }
  // Wanted for all-reduce.
  Algorithm algorithm() const { return algorithm_; }

  // Runs f(channel, stripe) on each lane that a message of so many bytes has a stripe for.
  using Stripe = std::function<void(Channel&, Range)>;
  void run(const Operation& operation, const Team& team, size_t bytes, const Stripe& f);

  // The first number that is not a group's yet, as far as this rank knows.
  uint32_t next_group = 1;

 private:
  Job(const Config& config, Connections connections);

  const Algorithm algorithm_;
  Watch watch_;
  Lanes lanes_;
  Calls calls_;  // last: its thread uses all of the above
};

}  // namespace trunkline

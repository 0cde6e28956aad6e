// Rendezvous: how the ranks of a job find each other. Rank 0 listens at the coordinator's address; every other rank
// joins there, is given the table of ranks, and then connects to each lower rank: one control connection and one
// connection a lane. It ends when every pair is connected.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "link/hello.h"
#include "link/message.h"
#include "link/tcp_link.h"

namespace trunkline {

struct Place {
  int rank = 0;
  int size = 1;
  std::string coordinator;
  std::optional<int> listen_fd;
  std::string job_key;
  std::chrono::milliseconds timeout{60'000};
  int lanes = 0;                        // 0: whatever rank 0 says
  int default_lanes = 1;                // what rank 0 says when it has no wish of its own
  std::vector<SharedSetting> settings;  // a rank with others than rank 0's is refused
};

struct Connections {
  std::vector<Member> members;
  std::vector<MessageStream> control;       // [rank]; none for this rank itself
  std::vector<std::vector<TcpLink>> lanes;  // [lane][rank]
};

// Throws Error(timeout) naming the ranks that are missing, Error(mismatch) or Error(input) naming both sides of a
// clash; every rank that has joined throws the same.
Connections rendezvous(const Place& place);

}  // namespace trunkline

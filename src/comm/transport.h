// What a job's bytes travel on: how the ranks connect, and the channel of each lane.
#pragma once

#include <memory>
#include <vector>

#include "comm/channel.h"
#include "comm/watch.h"
#include "link/rendezvous.h"
#include "plan/ring.h"

namespace trunkline {

// Joins the job. Errors are those of rendezvous().
Connections connect_ranks(const Config& config);

// From how many bytes on a message is cut among lanes.
size_t trunking_from(const Config& config);

// How many cables join each pair of ranks; over TCP, every pair has a path. The same on every rank.
Paths paths_of(const Config& config);

// One channel a lane. `connections`: its members and control connections are the watch's by now.
std::vector<std::unique_ptr<Channel>> make_channels(const Config& config, Connections connections, Watch& watch);

}  // namespace trunkline

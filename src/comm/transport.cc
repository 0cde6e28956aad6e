#include "comm/transport.h"

#include <algorithm>
#include <thread>

#include "comm/stream_channel.h"
#include "link/socket.h"
#include "plan/collectives.h"

namespace trunkline {
namespace {

constexpr std::chrono::microseconds kSpin{20};

// The connections of a job of one rank.
Connections alone() {
  Connections connections;
  connections.members.resize(1);
  connections.members[0].host = host_name();
  connections.control.resize(1);
  connections.lanes.resize(1);
  connections.lanes[0].resize(1);
  return connections;
}

int cores() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

// Threads that wait may spin only where every thread of every rank of this host, and one that computes, has a core.
std::chrono::nanoseconds spin_for(const std::vector<Member>& members, int rank, size_t lanes) {
  const std::string& host = members[static_cast<size_t>(rank)].host;
  const auto neighbours =
      std::count_if(members.begin(), members.end(), [&](const Member& m) { return m.host == host; });
  const bool spare = neighbours * static_cast<int>(lanes + 1) <= cores();
  return spare ? kSpin : std::chrono::nanoseconds(0);
}

}  // namespace

Connections connect_ranks(const Config& config) {
  if (config.size == 1) return alone();
  Place place;
  place.rank = config.rank;
  place.size = config.size;
  place.coordinator = config.coordinator;
  place.listen_fd = config.listen_fd;
  place.job_key = config.job_key;
  place.timeout = config.timeout;
  place.lanes = config.workers == Workers::single ? 1 : config.lanes;
  const bool one_host = Address::resolve(config.coordinator).front().loopback();
  place.default_lanes = default_lanes(cores(), one_host ? config.size : 1);
  return rendezvous(place);
}

std::vector<std::unique_ptr<Channel>> make_channels(const Config& config, Connections connections, Watch& watch) {
  const StreamChannel::Options options{kFrameBytes, spin_for(watch.members(), config.rank, connections.lanes.size())};
  std::vector<std::unique_ptr<Channel>> channels;
  for (auto& links : connections.lanes) {
    channels.push_back(
        std::make_unique<StreamChannel>(static_cast<size_t>(config.rank), std::move(links), watch, options));
  }
  return channels;
}

}  // namespace trunkline

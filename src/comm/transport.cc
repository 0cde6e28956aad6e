#include "comm/transport.h"

#include <algorithm>
#include <random>

#include "base/cores.h"
#include "base/file.h"
#include "comm/exchange.h"
#include "comm/frame_channel.h"
#include "comm/spin.h"
#include "comm/stream_channel.h"
#include "link/message.h"
#include "link/socket.h"
#include "link/tcp_message_link.h"
#include "plan/collectives.h"

namespace trunkline {
namespace {

constexpr std::chrono::microseconds kStreamSpin{20};
// Frames in flight of a lane on a cable: 32 of 64 KiB are known to fill one; beside them those kept for credit
// messages.
constexpr size_t kReceives = 32 + FrameChannel::kCreditReserve;
constexpr size_t kSends = 40;

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

size_t cable_frame_bytes(const Config& config) {
  return config.frame_bytes != 0 ? config.frame_bytes : kCableFrameBytes;
}

DeviceMatrix matrix_of(const Config& config) {
  return device_matrix_from_json(read_file(config.devices), config.devices, config.size);
}

// What ranks must have alike: with other values they would cut messages in other places, or wait for each other on
// different paths. Those of cables are compared only by ranks that use cables.
std::vector<SharedSetting> settings_of(const Config& config) {
  const bool cables = !config.devices.empty();
  const auto on_off = [](bool on) { return on ? "on" : "off"; };
  std::vector<SharedSetting> settings = {
      {"MLX_IBV_DEVICES", cables ? "a device matrix (and uses RDMA cables)" : "no device matrix (and uses TCP)"},
      {"TRUNKLINE_TRUNKING_FROM", std::to_string(trunking_from(config))},
      {"--algorithm (TRUNKLINE_ALGORITHM)", std::string(name_of(config.algorithm))}};
  if (!cables) return settings;
  settings.push_back({"TRUNKLINE_TRUNKS", config.trunks > 0 ? std::to_string(config.trunks) : "all"});
  settings.push_back({"TRUNKLINE_FRAME_BYTES", std::to_string(cable_frame_bytes(config))});
  settings.push_back({"TRUNKLINE_CRC", on_off(config.checksum)});
  settings.push_back({"TRUNKLINE_TCP_FALLBACK", on_off(config.tcp_fallback)});
  return settings;
}

// Of any trunk.
int most_cables(const Config& config) {
  size_t most = 1;
  for (const auto& row : matrix_of(config)) {
    for (const auto& cell : row) most = std::max(most, cell.size());
  }
  return config.trunks > 0 ? std::min(config.trunks, static_cast<int>(most)) : static_cast<int>(most);
}

}  // namespace

size_t trunking_from(const Config& config) {
  if (config.trunking_from != 0) return config.trunking_from;
  return config.devices.empty() ? kSmallTcpMessage : kSmallMessage;
}

Connections connect_ranks(const Config& config) {
  if (config.size == 1) return alone();
  Place place;
  place.rank = config.rank;
  place.size = config.size;
  place.coordinator = config.coordinator;
  place.listen_fd = config.listen_fd;
  place.job_key = config.job_key;
  place.timeout = config.timeout;
  place.settings = settings_of(config);
  place.lanes = config.workers == Workers::single ? 1 : config.lanes;
  const bool one_host = Address::resolve(config.coordinator).front().loopback();
  const int ranks_here = one_host ? config.size : 1;
  place.default_lanes = config.devices.empty() ? default_lanes(usable_cores(), ranks_here)
                                               : default_lanes(usable_cores(), ranks_here, most_cables(config));
  return rendezvous(place);
}

Paths paths_of(const Config& config) {
  Paths paths = all_paths(static_cast<size_t>(config.size));
  if (config.devices.empty() || config.size == 1) return paths;
  const DeviceMatrix matrix = matrix_of(config);
  const size_t most = config.trunks > 0 ? static_cast<size_t>(config.trunks) : SIZE_MAX;
  for (size_t a = 0; a < paths.size(); ++a) {
    for (size_t b = 0; b < paths.size(); ++b) {
      const size_t spare = config.tcp_fallback && a != b ? 1 : 0;  // TCP is a path where it was asked for
      paths[a][b] = std::max(spare, std::min(most, matrix[a][b].size()));
    }
  }
  return paths;
}

namespace {

using Channels = std::vector<std::unique_ptr<Channel>>;

Channels make_streams(const Config& config, Connections connections, Watch& watch, std::chrono::nanoseconds spin) {
  // Each look is a call of the system for every peer: who looks for long keeps the core from those who deliver.
  const StreamChannel::Options options{kFrameBytes, std::min<std::chrono::nanoseconds>(spin, kStreamSpin)};
  Channels channels;
  for (auto& links : connections.lanes) {
    channels.push_back(
        std::make_unique<StreamChannel>(static_cast<size_t>(config.rank), std::move(links), watch, options));
  }
  return channels;
}

// Returns the generation of this job, which rank 0 says: what cables carry belongs to it, and not to an earlier job of
// the same address.
uint32_t agree_on_generation(const Exchange& exchange, const Watch& watch) {
  const uint32_t own = std::random_device()();
  const auto said = exchange(std::vector<std::string>(watch.members().size(), Encoder().put(own).take()));
  return watch.rank() == 0 ? own : Decoder(said[0]).get<uint32_t>();
}

// A lane's TCP connection to each peer as the last link of its trunk.
void add_spare_links(LaneTrunks& lane, std::vector<TcpLink>& connections, const FrameChannel::Layout& layout) {
  std::byte* slots = lane.slab.data() + layout.bytes();
  for (size_t peer = 0; peer < connections.size(); ++peer, slots += kReceives * layout.slot_bytes) {
    if (connections[peer].fd() < 0) continue;  // this rank itself
    TrunkLink spare;
    spare.link = std::make_unique<TcpMessageLink>(std::move(connections[peer]), "tcp", kSends);
    spare.receive_slots = slots;
    spare.receives = spare.peer_receives = kReceives;
    spare.sends = kSends;
    for (size_t slot = 0; slot < kReceives; ++slot) {
      spare.link->post_receive(slots + slot * layout.slot_bytes, static_cast<uint32_t>(layout.slot_bytes), slot);
    }
    lane.trunks[peer].push_back(std::move(spare));
  }
}

Channels make_trunks(const Config& config, const DeviceMatrix& matrix, Connections connections, Watch& watch,
                     std::chrono::nanoseconds spin) {
  const auto rank = static_cast<size_t>(config.rank);
  FrameChannel::Options options;
  options.frame_bytes = cable_frame_bytes(config);
  options.checksum = config.checksum;
  options.spin = spin;

  std::vector<size_t> links;
  for (const auto& cables : matrix[rank]) {
    links.push_back(config.trunks > 0 ? std::min(cables.size(), static_cast<size_t>(config.trunks)) : cables.size());
  }
  if (config.tcp_fallback) {
    options.spare_link = true;
    for (size_t peer = 0; peer < links.size(); ++peer) links[peer] += peer == rank ? 0 : 1;
  }
  const FrameChannel::Layout layout = FrameChannel::layout(options.frame_bytes, links);
  const size_t spare_bytes = config.tcp_fallback ? links.size() * kReceives * layout.slot_bytes : 0;

  TrunkOptions trunks;
  trunks.rank = config.rank;
  trunks.matrix = matrix;
  trunks.lanes = connections.lanes.size();
  trunks.cables = config.trunks;
  trunks.slot_bytes = layout.slot_bytes;
  trunks.receives = kReceives;
  trunks.sends = kSends;
  trunks.extra_bytes = layout.bytes() + spare_bytes;
  trunks.timeout = config.timeout;
  trunks.on_hang = [&watch](const std::string& why) { watch.fail_job(Error(ErrorKind::system, why)); };
  const Exchange exchange_all = [&](const std::vector<std::string>& texts) {
    return exchange(texts, connections.lanes[0], rank, watch, config.timeout);
  };
  options.generation = agree_on_generation(exchange_all, watch);
  std::vector<LaneTrunks> lanes = connect_trunks(trunks, exchange_all);

  const auto keeper = std::make_shared<Keeper>();
  const auto log = std::make_shared<CableLog>();
  Channels channels;
  for (LaneTrunks& lane : lanes) {
    options.lane = channels.size();
    if (config.tcp_fallback) add_spare_links(lane, connections.lanes[options.lane], layout);
    channels.push_back(std::make_unique<FrameChannel>(rank, std::move(lane), layout, watch, keeper, log, options));
  }
  return channels;
}

}  // namespace

Channels make_channels(const Config& config, Connections connections, Watch& watch) {
  const auto spin = spin_for(watch.members(), static_cast<size_t>(config.rank), connections.lanes.size());
  if (config.devices.empty() || config.size == 1) return make_streams(config, std::move(connections), watch, spin);
  try {
    return make_trunks(config, matrix_of(config), std::move(connections), watch, spin);
  } catch (const std::exception& error) {
    watch.fail_job(error);  // the others wait for this rank in the exchange, and are told why
    throw;
  }
}

}  // namespace trunkline

#include "link/verbs_trunks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "base/log.h"
#include "link/message.h"
#include "link/verbs_link.h"
#include "link/verbs_proof.h"

namespace trunkline {
namespace {

constexpr std::chrono::milliseconds kCallPatience{10'000};  // for one call to a device, and for its address

struct TrunkCable {
  Port here, there;
};

// One round of the set-up: a text to every rank, and what each says.
class Setup {
 public:
  Setup(const TrunkOptions& options, const Exchange& exchange)
      : options_(options), exchange_(exchange), rank_(static_cast<size_t>(options.rank)), ports_(options.matrix) {
    if (rank_ >= ports_.ranks()) {
      fail(ErrorKind::input, "device matrix: has {} rows, and there is a rank {}", ports_.ranks(), rank_);
    }
    if (options.lanes == 0 || options.slot_bytes == 0 || options.receives == 0 || options.sends == 0) {
      fail(ErrorKind::input, "trunks: lanes, slots, receives and sends are all at least one");
    }
  }

  std::vector<LaneTrunks> run();

 private:
  void compare_options();
  void open_devices();
  void exchange_gids();
  void order_cables(const ProvenCables& proven);
  std::vector<LaneTrunks> make_lanes(const std::vector<DeviceDepth>& depths);
  void connect();

  struct Link {
    VerbsLink* verbs;
    TrunkLink* trunk;
  };

  const TrunkOptions& options_;
  const Exchange& exchange_;
  const size_t rank_;
  Ports ports_;
  std::vector<std::shared_ptr<VerbsDevice>> devices_;  // by index of this rank's ports
  std::vector<std::vector<TrunkCable>> cables_;        // [peer][cable]
  std::vector<std::vector<Link>> links_;               // [peer], lane by lane
};

std::vector<LaneTrunks> Setup::run() {
  compare_options();
  open_devices();
  exchange_gids();
  const ProvenCables proven = prove_cables(options_, ports_, devices_, exchange_);
  order_cables(proven);
  std::vector<LaneTrunks> lanes = make_lanes(proven.depths);
  connect();
  return lanes;
}

void Setup::compare_options() {
  Encoder encoder;
  encoder.put(uint64_t{options_.lanes}).put(options_.cables).put(uint64_t{options_.slot_bytes});
  for (size_t rank = 0; rank < ports_.ranks(); ++rank) {
    for (const PortInfo& port : ports_.of(rank)) encoder.put(uint64_t{port.peer}).put(port.name);
  }
  const std::string own = encoder.take();
  const auto said = exchange_(std::vector<std::string>(ports_.ranks(), own));
  for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
    if (peer == rank_ || said[peer] == own) continue;
    Decoder decoder(said[peer]);
    const auto lanes = decoder.get<uint64_t>();
    const int cables = decoder.get<int>();
    const auto slot = decoder.get<uint64_t>();
    if (lanes == options_.lanes && cables == options_.cables && slot == options_.slot_bytes) {
      fail(ErrorKind::mismatch, "rank {} and rank {} have different device matrices: give every rank the same", rank_,
           peer);
    }
    fail(ErrorKind::mismatch,
         "rank {} has {} lanes, {} cables a peer (0: all) and frames of {} bytes; rank {} has {}, {} and {}: set them "
         "alike for every rank",
         rank_, options_.lanes, options_.cables, options_.slot_bytes, peer, lanes, cables, slot);
  }
}

void Setup::open_devices() {
  const auto patience = std::min(kCallPatience, options_.timeout);
  const VerbsLibrary library = VerbsLibrary::open(options_.library);
  for (const PortInfo& port : ports_.of(rank_)) {
    const auto device = std::make_shared<VerbsDevice>(library, options_.rank, port.name, patience);
    if (const int most = device->most_queue_pairs(); most > 0 && options_.lanes > static_cast<size_t>(most)) {
      fail(ErrorKind::input, "{} has {} queue pairs, and {} lanes need one each: ask for at most {} lanes",
           device->subject(), most, options_.lanes, most);
    }
    devices_.push_back(device);
  }
}

void Setup::exchange_gids() {
  std::string own;
  for (size_t i = 0; i < devices_.size(); ++i) {
    const ibv_gid& gid = devices_[i]->gid();
    own.append(reinterpret_cast<const char*>(gid.raw), sizeof gid.raw);
  }
  auto said = exchange_(std::vector<std::string>(ports_.ranks(), own));
  said[rank_] = own;
  for (size_t rank = 0; rank < ports_.ranks(); ++rank) {
    auto& ports = ports_.of(rank);
    if (said[rank].size() != ports.size() * sizeof(ibv_gid)) {
      fail(ErrorKind::peer, "rank {} says the addresses of its devices in {} bytes, not {}", rank, said[rank].size(),
           ports.size() * sizeof(ibv_gid));
    }
    for (size_t i = 0; i < ports.size(); ++i) {
      std::memcpy(ports[i].gid.raw, said[rank].data() + i * sizeof(ibv_gid), sizeof(ibv_gid));
    }
  }
}

// The order of a trunk is that of the lower rank's list.
void Setup::order_cables(const ProvenCables& proven) {
  cables_.resize(ports_.ranks());
  for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
    const size_t low = std::min(rank_, peer), high = std::max(rank_, peer);
    const auto lower = ports_.between(low, high), upper = ports_.between(high, low);
    std::vector<std::string> corrected;
    for (size_t k = 0; k < lower.size(); ++k) {
      const Port one = lower[k], other = proven.cabling.at(one);
      if (other != upper[k]) corrected.push_back(fmt::format("{} - {}", ports_[one].name, ports_[other].name));
      cables_[peer].push_back(rank_ == low ? TrunkCable{one, other} : TrunkCable{other, one});
    }
    if (!corrected.empty()) {
      spdlog::warn("rank {}: the lists of devices of rank {} and rank {} are in different orders; put right: {}", rank_,
                   low, high, fmt::join(corrected, ", "));
    }
    if (options_.cables > 0 && cables_[peer].size() > static_cast<size_t>(options_.cables)) {
      cables_[peer].resize(static_cast<size_t>(options_.cables));
    }
  }
}

std::vector<LaneTrunks> Setup::make_lanes(const std::vector<DeviceDepth>& depths) {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto whole_pages = [page](size_t bytes) { return (bytes + page - 1) / page * page; };
  size_t bytes = whole_pages(options_.extra_bytes);
  for (const auto& trunk : cables_) {
    for (const TrunkCable& cable : trunk) bytes += whole_pages(depths[cable.here.index].receives * options_.slot_bytes);
  }
  std::vector<LaneTrunks> lanes(options_.lanes);
  links_.resize(ports_.ranks());
  for (LaneTrunks& lane : lanes) {
    lane.slab = Slab(bytes);
    std::byte* next = lane.slab.data() + whole_pages(options_.extra_bytes);
    for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
      std::vector<TrunkLink>& trunk = lane.trunks.emplace_back(cables_[peer].size());
      for (size_t cable = 0; cable < trunk.size(); ++cable) {
        const auto [here, there] = cables_[peer][cable];
        const auto& device = devices_[here.index];
        const DeviceDepth& depth = depths[here.index];
        auto link = std::make_unique<VerbsLink>(device, std::make_shared<VerbsRegion>(device, lane.slab),
                                                depth.receives, depth.sends);
        link->set_name(ports_[here].name == ports_[there].name
                           ? ports_[here].name
                           : fmt::format("{}-{}", ports_[here].name, ports_[there].name));
        links_[peer].push_back({link.get(), &trunk[cable]});
        trunk[cable].link = std::move(link);
        trunk[cable].receive_slots = next;
        trunk[cable].receives = depth.receives;
        next += whole_pages(depth.receives * options_.slot_bytes);
      }
    }
  }
  return lanes;
}

void Setup::connect() {
  std::vector<std::string> out(ports_.ranks());
  for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
    Encoder encoder;
    for (const Link& link : links_[peer]) {
      encoder.put(link.verbs->address().queue_pair).put(link.verbs->address().first_packet);
    }
    out[peer] = encoder.take();
  }
  auto said = exchange_(out);
  for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
    Decoder decoder(said[peer]);
    Encoder encoder;
    for (size_t i = 0; i < links_[peer].size(); ++i) {
      const Link& link = links_[peer][i];
      const auto [here, there] = cables_[peer][i % cables_[peer].size()];
      VerbsAddress address;
      address.gid = ports_[there].gid;
      address.queue_pair = decoder.get<uint32_t>();
      address.first_packet = decoder.get<uint32_t>();
      if (const int error = link.verbs->connect(address); error != 0) {
        fail(ErrorKind::system, "{} cannot be connected with {}: {}; unplug and plug the cable between them",
             devices_[here.index]->subject(), ports_.text(there), std::strerror(error));
      }
      link.trunk->receives =
          link.verbs->post_receives(link.trunk->receive_slots, options_.slot_bytes, link.trunk->receives);
      link.trunk->sends = link.verbs->sends();
      encoder.put(uint64_t{link.trunk->receives});
    }
    out[peer] = encoder.take();
  }
  // Nobody sends before all have posted their receives.
  said = exchange_(out);
  for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
    Decoder decoder(said[peer]);
    for (const Link& link : links_[peer]) link.trunk->peer_receives = decoder.get<uint64_t>();
  }
  const auto watch = std::make_shared<CallWatch>(options_.on_hang);
  for (const auto& trunk : links_) {
    for (const Link& link : trunk) link.verbs->be_watched(watch);
  }
}

}  // namespace

std::vector<LaneTrunks> connect_trunks(const TrunkOptions& options, const Exchange& exchange) {
  return Setup(options, exchange).run();
}

}  // namespace trunkline

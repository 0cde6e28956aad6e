#include "fabric/device.h"

#include <arpa/inet.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <thread>

#include "base/settings.h"
#include "trunkline/error.h"

namespace trunkline {
namespace {

// What one sees without telling: EUI-64 link-local at index 0, IPv4 link-local (mapped) at index 1.
std::vector<std::string> default_gids(size_t device) {
  const size_t n = device + 1;
  return {fmt::format("fe80::200:ff:fe00:{:x}", n), fmt::format("::ffff:169.254.{}.{}", 1 + n / 250, 1 + n % 250)};
}

std::string find_rank_and_open(std::unique_ptr<Segment>& segment, int& rank) {
  try {
    const Settings& settings = Settings::get();
    if (!settings.fabric_fd) return "TRUNKLINE_FABRIC_FD is not set; `trunkline launch --cables` sets it";
    if (!settings.rank) return "MLX_RANK is not set";
    segment =
        std::make_unique<Segment>(static_cast<int>(to_integer("TRUNKLINE_FABRIC_FD", *settings.fabric_fd, 0, 1 << 20)));
    rank = static_cast<int>(to_integer("MLX_RANK", *settings.rank, 0, segment->wiring().ranks - 1));
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace

bool is_ipv4_mapped(const Gid& gid) {
  return std::all_of(gid.begin(), gid.begin() + 10, [](uint8_t byte) { return byte == 0; }) && gid[10] == 0xff &&
         gid[11] == 0xff;
}

RdmaDevice::RdmaDevice(Segment& segment, size_t index)
    : segment_(segment),
      index_(index),
      spec_(segment.wiring().devices[index]),
      state_(segment.device(index)),
      regions_(static_cast<size_t>(segment.wiring().limits.memory_regions)) {
  const Wiring& wiring = segment.wiring();
  for (size_t i = 0; i < wiring.cables.size(); ++i) {
    for (int end = 0; end < 2; ++end) {
      const auto& ends = wiring.cables[i].ends;
      if (ends[static_cast<size_t>(end)] != CableEnd{spec_.rank, spec_.name}) continue;
      const CableEnd& other = ends[static_cast<size_t>(1 - end)];
      cable_ = i;
      end_ = end;
      const auto peer = std::find_if(wiring.devices.begin(), wiring.devices.end(), [&](const Device& device) {
        return device.rank == other.rank && device.name == other.device;
      });
      peer_ = static_cast<size_t>(peer - wiring.devices.begin());
    }
  }
  for (size_t call = 0; call < kDeviceCalls.size(); ++call) {
    const std::string name(kDeviceCalls[call]);
    const bool hangs = std::find(spec_.hangs.begin(), spec_.hangs.end(), name) != spec_.hangs.end();
    if (hangs || spec_.errors.contains(name)) faults_ |= 1u << call;
  }
  for (const GidTable& table : spec_.gids) gid_count_ = std::max(gid_count_, static_cast<int>(table.gids.size()));
  handle_.self = this;
  ibv_device& device = handle_.ibv;
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  std::snprintf(device.name, sizeof device.name, "%s", spec_.name.c_str());
  std::snprintf(device.dev_name, sizeof device.dev_name, "uverbs%zu", index);
}

int RdmaDevice::slow_fault(Call call) {
  if ((faults_ >> static_cast<int>(call) & 1) == 0) return 0;
  const std::string name(kDeviceCalls[static_cast<size_t>(call)]);
  if (std::find(spec_.hangs.begin(), spec_.hangs.end(), name) != spec_.hangs.end()) {
    const auto from = segment_.opened_ns() + static_cast<uint64_t>(spec_.hangs_at_ms * 1e6);
    while (now_ns() >= from) std::this_thread::sleep_for(std::chrono::seconds(1));  // as a wedged driver: for ever
  }
  const auto error = spec_.errors.find(name);
  return error == spec_.errors.end() ? 0 : error->second;
}

bool RdmaDevice::cable_cut() const {
  const uint64_t now = now_ns();
  return has_cable() && Wire(segment_, *cable_, end_).cut_at(now, now);
}

Gid RdmaDevice::gid(int index) const { return gid_of(index_, index); }

Gid RdmaDevice::gid_of(size_t device, int index) const {
  std::vector<std::string> table;
  const std::vector<GidTable>& tables = segment_.wiring().devices[device].gids;
  if (tables.empty()) table = default_gids(device);
  const uint64_t now = now_ns();
  for (const GidTable& later : tables) {
    if (now >= segment_.opened_ns() + static_cast<uint64_t>(later.at_ms * 1e6)) table = later.gids;
  }
  Gid gid{};
  if (index < static_cast<int>(table.size()) && !table[static_cast<size_t>(index)].empty()) {
    ::inet_pton(AF_INET6, table[static_cast<size_t>(index)].c_str(), gid.data());
  }
  return gid;
}

bool RdmaDevice::peer_has(const Gid& gid) const {
  for (int i = 0; i < 64; ++i) {
    if (gid_of(*peer_, i) == gid) return true;
  }
  return false;
}

uint32_t RdmaDevice::claim_queue_pair() {
  // Numbers rise by slots, so that a slot's next queue pair is another one to those who knew the last.
  const auto claim = [&](int slot, uint64_t taken) -> uint32_t {
    const uint32_t made = state_.queue_pairs_made.fetch_add(1) % 0x3'ffff + 1;
    const uint32_t number = made * kMaxQueuePairs + static_cast<uint32_t>(slot);
    const uint64_t owner = static_cast<uint64_t>(::getpid()) << 32 | number;
    return state_.queue_pairs[slot].compare_exchange_strong(taken, owner) ? number : 0;
  };
  for (int slot = 0; slot < limits().queue_pairs; ++slot) {
    if (state_.queue_pairs[slot].load() != 0) continue;
    if (const uint32_t number = claim(slot, 0)) return number;
  }
  for (int slot = 0; slot < limits().queue_pairs && !limits().keep_crashed_queue_pairs; ++slot) {
    const uint64_t owner = state_.queue_pairs[slot].load();
    if (owner != 0 && process_alive(static_cast<uint32_t>(owner >> 32))) continue;
    if (const uint32_t number = claim(slot, owner)) return number;
  }
  return 0;
}

void RdmaDevice::release_queue_pair(uint32_t number) {
  uint64_t owner = static_cast<uint64_t>(::getpid()) << 32 | number;
  state_.queue_pairs[slot_of(number)].compare_exchange_strong(owner, 0);
}

bool RdmaDevice::peer_alive(uint32_t queue_pair) {
  const uint64_t owner = peer_state().queue_pairs[slot_of(queue_pair)].load();
  return static_cast<uint32_t>(owner) == queue_pair && process_alive(static_cast<uint32_t>(owner >> 32));
}

bool RdmaDevice::add(Region& region) {
  const auto self = static_cast<uint32_t>(::getpid());
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t slot = 0; slot < regions_.size(); ++slot) {
      uint32_t owner = state_.regions[slot].load(std::memory_order_relaxed);
      if (owner != 0 && (pass == 0 || process_alive(owner))) continue;  // second pass: those of the dead
      if (!state_.regions[slot].compare_exchange_strong(owner, self)) continue;
      region.ibv.handle = static_cast<uint32_t>(slot);
      region.ibv.lkey = region.ibv.rkey = static_cast<uint32_t>(slot + 1) << 8;
      regions_[slot].store(&region, std::memory_order_release);
      return true;
    }
  }
  return false;
}

void RdmaDevice::remove(Region& region) {
  regions_[region.ibv.handle].store(nullptr, std::memory_order_release);
  state_.regions[region.ibv.handle].store(0);
}

Region* RdmaDevice::region(uint32_t lkey) const {
  const size_t slot = (lkey >> 8) - size_t{1};
  return slot < regions_.size() && lkey % 256 == 0 ? regions_[slot].load(std::memory_order_acquire) : nullptr;
}

std::deque<RdmaDevice>* rank_devices() {
  // Never destroyed: a call that hangs still looks at them when the process ends.
  static auto& segment = *new std::unique_ptr<Segment>;
  static auto& devices = *new std::deque<RdmaDevice>;
  static const bool usable = [] {
    int rank = 0;
    const std::string fault = find_rank_and_open(segment, rank);
    if (!fault.empty()) {
      std::fprintf(stderr, "trunkline fabric: no devices: %s\n", fault.c_str());
      return false;
    }
    for (size_t i = 0; i < segment->wiring().devices.size(); ++i) {
      if (segment->wiring().devices[i].rank == rank) devices.emplace_back(*segment, i);
    }
    return true;
  }();
  return usable ? &devices : nullptr;
}

}  // namespace trunkline

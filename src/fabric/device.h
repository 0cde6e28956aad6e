// The emulated devices of this process's rank, and contexts that open them.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "cluster/cables.h"
#include "fabric/segment.h"
#include "fabric/wire.h"

namespace trunkline {

// Indexes of kDeviceCalls.
enum class Call {
  open_device,
  query_device,
  query_port,
  query_gid,
  alloc_pd,
  reg_mr,
  create_cq,
  create_qp,
  modify_qp,
  destroy_qp,
  dereg_mr,
  destroy_cq,
  post_send,
  post_recv,
  poll_cq
};

// A registered memory region.
struct Region {
  ibv_mr ibv{};
  uint64_t iova = 0;  // what work requests call its first byte
  int access = 0;
};

using Gid = std::array<uint8_t, 16>;
bool is_ipv4_mapped(const Gid& gid);

class RdmaDevice {
 public:
  RdmaDevice(Segment& segment, size_t index);  // of Wiring::devices

  ibv_device* ibv() { return &handle_.ibv; }
  static RdmaDevice& of(ibv_device* device) { return *reinterpret_cast<Handle*>(device)->self; }

  const std::string& name() const { return spec_.name; }
  const DeviceLimits& limits() const { return segment_.wiring().limits; }
  Segment& segment() { return segment_; }
  DeviceState& state() { return state_; }
  int rank() const { return spec_.rank; }
  uint64_t guid() const { return 0x0200'0000'0000'0000u + static_cast<uint64_t>(spec_.rank) * 0x1'0000 + index_ + 1; }

  // The errno that the file orders for this call, or 0; does not return from a call that the file lets hang.
  int fault(Call call) { return faults_ == 0 ? 0 : slow_fault(call); }

  bool has_cable() const { return cable_.has_value(); }
  bool port_usable() const { return has_cable() && !spec_.port_down; }
  bool cable_cut() const;
  int link_gbps() const { return has_cable() ? segment_.wiring().cables[*cable_].link_gbps : 80; }
  // Towards the cable's other end.
  Wire wire() { return Wire(segment_, *cable_, end_); }
  Channel channel(bool outgoing, int queue_pair) {
    return segment_.channel(*cable_, outgoing ? end_ : 1 - end_, queue_pair);
  }
  // The device at the other end.
  const Device* peer() const { return peer_ ? &segment_.wiring().devices[*peer_] : nullptr; }
  DeviceState& peer_state() { return segment_.device(*peer_); }

  int gid_count() const { return gid_count_; }
  Gid gid(int index) const;  // all zero: an empty entry
  bool peer_has(const Gid& gid) const;

  // Queue pair numbers: free slots are claimed from those of processes that are gone. 0: none left.
  uint32_t claim_queue_pair();
  void release_queue_pair(uint32_t number);
  static int slot_of(uint32_t queue_pair) { return static_cast<int>(queue_pair % kMaxQueuePairs); }
  // Whether the queue pair with this number at the other end still belongs to a process that lives.
  bool peer_alive(uint32_t queue_pair);

  // False: no region is left.
  bool add(Region& region);
  void remove(Region& region);
  Region* region(uint32_t lkey) const;

 private:
  // What programs and provider libraries are given: they look for a provider's table behind an ibv_device.
  struct Handle {
    ibv_device ibv{};
    void* provider[16] = {};
    RdmaDevice* self = nullptr;
  };

  int slow_fault(Call call);
  Gid gid_of(size_t device, int index) const;

  Segment& segment_;
  size_t index_;
  const Device& spec_;
  DeviceState& state_;
  std::optional<size_t> cable_, peer_;
  int end_ = 0;
  uint32_t faults_ = 0;  // a bit for each call that hangs or fails
  int gid_count_ = 16;
  std::vector<std::atomic<Region*>> regions_;
  Handle handle_;
};

// An open device. `verbs` is what programs see.
struct Context {
  verbs_context verbs{};
  RdmaDevice* device = nullptr;

  static Context& of(ibv_context* context) { return *reinterpret_cast<Context*>(verbs_get_ctx(context)); }
};

inline RdmaDevice& device_of(ibv_context* context) { return *Context::of(context).device; }

// The devices of this rank, in the order of their enumeration. Without a fabric in the environment, or with one that
// cannot be used: null, after one line on standard error that says why.
std::deque<RdmaDevice>* rank_devices();

// Null, errno set, if the file orders it.
ibv_context* open_device(RdmaDevice& device);
void close_device(ibv_context* context);

}  // namespace trunkline

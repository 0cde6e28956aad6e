// One RDMA device (one end of a Thunderbolt cable), open and ready for queue pairs. Calls to it are made in a thread of
// its own, since a wedged device never returns from one.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "link/call_thread.h"
#include "link/slab.h"
#include "link/verbs_library.h"

namespace trunkline {

class VerbsDevice {
 public:
  // Waits up to `patience` for each call, and for the address: the port gets its IPv4-mapped GID only once its
  // interface has an IPv4 address. Throws Error(input) if there is no such device, Error(system) if its port is down or
  // it cannot be used.
  VerbsDevice(const VerbsLibrary& library, int rank, std::string name, std::chrono::milliseconds patience);
  ~VerbsDevice();
  VerbsDevice(const VerbsDevice&) = delete;
  VerbsDevice& operator=(const VerbsDevice&) = delete;

  const VerbsLibrary& library() const { return library_; }
  CallThread& calls() { return calls_; }
  const std::string& name() const { return name_; }
  const std::string& subject() const { return subject_; }  // "rank 0: device rdma_en2"
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  const ibv_gid& gid() const { return gid_; }
  uint8_t gid_index() const { return gid_index_; }
  int most_queue_pairs() const { return most_queue_pairs_; }      // 0: it does not say
  int most_work_requests() const { return most_work_requests_; }  // advertised, not what it accepts; 0: it does not say

 private:
  void open();
  void check_port();
  void find_gid(std::chrono::milliseconds patience);

  const VerbsLibrary library_;
  const std::string name_, subject_;
  CallThread calls_;
  ibv_context* context_ = nullptr;
  ibv_pd* pd_ = nullptr;
  ibv_gid gid_{};
  uint8_t gid_index_ = 0;
  int gids_ = 0;
  int most_queue_pairs_ = 0, most_work_requests_ = 0;
};

// Memory that a device may read and write. A device takes some 100 of these.
class VerbsRegion {
 public:
  VerbsRegion(std::shared_ptr<VerbsDevice> device, const Slab& slab);  // throws Error(system)
  ~VerbsRegion();
  VerbsRegion(const VerbsRegion&) = delete;
  VerbsRegion& operator=(const VerbsRegion&) = delete;

  uint32_t key() const { return mr_->lkey; }

 private:
  std::shared_ptr<VerbsDevice> device_;
  ibv_mr* mr_ = nullptr;
};

// For destructors: makes the call; a device that hangs or refuses is logged, and what it held stays with it.
void release(VerbsDevice& device, const char* name, const std::function<int()>& call);

}  // namespace trunkline

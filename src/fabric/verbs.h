// What more than one file of the verbs entry points needs.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <bit>

#include "fabric/device.h"

namespace trunkline {

inline constexpr int kMaxCompletions = 1 << 20;

struct ProtectionDomain {
  ibv_pd ibv{};
  std::atomic<int> users{0};  // regions and queue pairs

  static ProtectionDomain& of(ibv_pd* pd) { return *reinterpret_cast<ProtectionDomain*>(pd); }
};

inline __be64 big_endian(uint64_t value) {
  return std::endian::native == std::endian::little ? __builtin_bswap64(value) : value;
}

inline ibv_mtu mtu_of(int bytes) {
  int mtu = IBV_MTU_256;
  while (mtu < IBV_MTU_4096 && bytes > 128 << mtu) ++mtu;
  return static_cast<ibv_mtu>(mtu);
}

int describe_device(RdmaDevice& device, ibv_device_attr& attributes);
int describe_port(RdmaDevice& device, int port, ibv_port_attr& attributes);

// Null, with errno set, when refused.
ibv_qp* create_queue_pair(ibv_qp_init_attr_ex& attributes);
ibv_cq* create_completion_queue(ibv_context* context, int entries, void* user_context, ibv_comp_channel* channel,
                                int vector);

}  // namespace trunkline

// Opening a device: the table of operations that programs call it by, and what it says of itself.
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <mutex>

#include "fabric/completion.h"
#include "fabric/device.h"
#include "fabric/queue_pair.h"
#include "fabric/verbs.h"

namespace trunkline {

int describe_device(RdmaDevice& device, ibv_device_attr& attributes) {
  if (const int error = device.fault(Call::query_device)) return error;
  const DeviceLimits& limits = device.limits();
  attributes = {};
  std::snprintf(attributes.fw_ver, sizeof attributes.fw_ver, "emulated");
  attributes.node_guid = attributes.sys_image_guid = big_endian(device.guid());
  attributes.max_mr_size = UINT64_MAX;
  attributes.page_size_cap = 4096;
  attributes.max_qp = limits.queue_pairs;
  attributes.max_qp_wr = limits.advertised_work_requests;
  attributes.max_sge = limits.scatter_entries;
  attributes.max_cq = 2 * limits.queue_pairs;
  attributes.max_cqe = kMaxCompletions;
  attributes.max_mr = limits.memory_regions;
  attributes.max_pd = 64;
  attributes.atomic_cap = IBV_ATOMIC_NONE;
  attributes.max_pkeys = 1;
  attributes.phys_port_cnt = 1;
  return 0;
}

int describe_port(RdmaDevice& device, int port, ibv_port_attr& attributes) {
  if (const int error = device.fault(Call::query_port)) return error;
  if (port != 1) return EINVAL;
  const DeviceLimits& limits = device.limits();
  const bool up = device.port_usable() && !device.cable_cut();
  attributes = {};
  attributes.state = up ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  attributes.phys_state = up ? 5 : 3;  // link up, disabled
  attributes.max_mtu = IBV_MTU_4096;
  attributes.active_mtu = mtu_of(limits.mtu);
  attributes.gid_tbl_len = device.gid_count();
  attributes.max_msg_sz = static_cast<uint32_t>(limits.message_bytes);
  attributes.pkey_tbl_len = 1;
  attributes.max_vl_num = 1;
  attributes.active_speed = 8;                                 // 10 Gb/s a lane ...
  attributes.active_width = device.link_gbps() == 80 ? 4 : 2;  // ... of 8, or of 4
  attributes.link_layer = IBV_LINK_LAYER_ETHERNET;
  return 0;
}

namespace {

int poll_cq(ibv_cq* cq, int room, ibv_wc* completions) { return CompletionQueue::of(cq).poll(room, completions); }

int request_notification(ibv_cq* cq, int) {
  if (cq->channel == nullptr) return EINVAL;
  EventChannel::of(cq->channel).arm(CompletionQueue::of(cq));
  return 0;
}

int post_send(ibv_qp* qp, ibv_send_wr* request, ibv_send_wr** bad) { return QueuePair::of(qp).post_send(request, bad); }

int post_receive(ibv_qp* qp, ibv_recv_wr* request, ibv_recv_wr** bad) {
  return QueuePair::of(qp).post_receive(request, bad);
}

int query_port(ibv_context* context, uint8_t port, ibv_port_attr* attributes, size_t size) {
  ibv_port_attr all;
  const int error = describe_port(device_of(context), port, all);
  if (error == 0) std::memcpy(attributes, &all, std::min(size, sizeof all));
  return error;
}

int query_device(ibv_context* context, const ibv_query_device_ex_input*, ibv_device_attr_ex* attributes, size_t size) {
  ibv_device_attr_ex all{};
  const int error = describe_device(device_of(context), all.orig_attr);
  all.phys_port_cnt_ex = 1;
  if (error == 0) std::memcpy(attributes, &all, std::min(size, sizeof all));
  return error;
}

ibv_qp* create_extended_queue_pair(ibv_context*, ibv_qp_init_attr_ex* attributes) {
  if ((attributes->comp_mask & IBV_QP_INIT_ATTR_PD) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  return create_queue_pair(*attributes);
}

ibv_cq_ex* create_extended_completion_queue(ibv_context* context, ibv_cq_init_attr_ex* attributes) {
  constexpr uint64_t kKnown = uint64_t{IBV_WC_STANDARD_FLAGS} | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  if ((attributes->wc_flags & ~kKnown) != 0) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  ibv_cq* cq = create_completion_queue(context, static_cast<int>(attributes->cqe), attributes->cq_context,
                                       attributes->channel, static_cast<int>(attributes->comp_vector));
  return cq == nullptr ? nullptr : CompletionQueue::of(cq).extended();
}

}  // namespace

ibv_context* open_device(RdmaDevice& device) {
  if (const int error = device.fault(Call::open_device)) {
    errno = error;
    return nullptr;
  }
  if (device.has_cable()) {  // maps it; later calls for this cable only look it up
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    device.channel(true, 0);
  }
  auto context = std::make_unique<Context>();
  context->device = &device;
  verbs_context& verbs = context->verbs;
  verbs.sz = sizeof verbs;
  verbs.query_port = query_port;
  verbs.query_device_ex = query_device;
  verbs.create_qp_ex = create_extended_queue_pair;
  verbs.create_cq_ex = create_extended_completion_queue;
  ibv_context& base = verbs.context;
  base.abi_compat = __VERBS_ABI_IS_EXTENDED;
  base.device = device.ibv();
  base.ops.poll_cq = poll_cq;
  base.ops.req_notify_cq = request_notification;
  base.ops.post_send = post_send;
  base.ops.post_recv = post_receive;
  base.cmd_fd = -1;
  base.async_fd = ::eventfd(0, EFD_CLOEXEC);  // never written to: a device tells of nothing, not even of a dead peer
  base.num_comp_vectors = 1;
  pthread_mutex_init(&base.mutex, nullptr);
  return &context.release()->verbs.context;
}

void close_device(ibv_context* context) {
  const std::unique_ptr<Context> owned(&Context::of(context));
  ::close(context->async_fd);
  pthread_mutex_destroy(&context->mutex);
}

}  // namespace trunkline

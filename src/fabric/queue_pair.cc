#include "fabric/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fabric/extended_send.h"

namespace trunkline {
namespace {

// What ibv_modify_qp must be given and may be given for a step of an unreliable-connected queue pair.
struct Step {
  int required, optional;
};
constexpr Step kToInit{IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, IBV_QP_CUR_STATE};
constexpr Step kInitAgain{0, IBV_QP_CUR_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS};
constexpr Step kToReadyToReceive{IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN,
                                 IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX};
constexpr Step kToReadyToSend{IBV_QP_SQ_PSN,
                              IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE};
constexpr Step kReadyAgain{0, IBV_QP_CUR_STATE | IBV_QP_ALT_PATH | IBV_QP_ACCESS_FLAGS | IBV_QP_PATH_MIG_STATE};

bool fits(int mask, Step step) {
  mask &= ~IBV_QP_STATE;
  return (mask & step.required) == step.required && (mask & ~(step.required | step.optional)) == 0;
}

int mtu_bytes(ibv_mtu mtu) { return 128 << static_cast<int>(mtu); }

Gid gid_of(const ibv_gid& gid) {
  Gid bytes;
  std::memcpy(bytes.data(), gid.raw, bytes.size());
  return bytes;
}

}  // namespace

QueuePair* QueuePair::create(Context& context, const ibv_qp_init_attr_ex& attributes) {
  RdmaDevice& device = *context.device;
  const DeviceLimits& limits = device.limits();
  const ibv_qp_cap& cap = attributes.cap;
  const auto refuse = [](int error) {
    errno = error;
    return nullptr;
  };
  if (const int error = device.fault(Call::create_qp)) return refuse(error);
  if (attributes.qp_type != IBV_QPT_UC || attributes.srq != nullptr) return refuse(EOPNOTSUPP);
  if (attributes.send_cq == nullptr || attributes.recv_cq == nullptr) return refuse(EINVAL);
  const auto too_many = [](uint32_t asked, int limit) { return asked > static_cast<uint32_t>(limit); };
  if (too_many(cap.max_send_wr, limits.advertised_work_requests) ||
      too_many(cap.max_recv_wr, limits.advertised_work_requests) ||
      too_many(cap.max_send_sge, limits.scatter_entries) || too_many(cap.max_recv_sge, limits.scatter_entries) ||
      too_many(cap.max_inline_data, limits.inline_bytes)) {
    return refuse(EINVAL);
  }
  constexpr uint64_t kSends = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
  const bool extended = (attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0;
  if ((extended && (attributes.send_ops_flags & ~kSends) != 0) ||
      (attributes.comp_mask & ~uint32_t{IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS}) != 0) {
    return refuse(EOPNOTSUPP);
  }
  const uint32_t number = device.claim_queue_pair();
  if (number == 0) return refuse(EBUSY);
  return new QueuePair(context, attributes, number);
}

QueuePair::QueuePair(Context& context, const ibv_qp_init_attr_ex& attributes, uint32_t number)
    : context_(context),
      device_(*context.device),
      limits_(device_.limits()),
      extended_((attributes.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS) != 0),
      signal_all_(attributes.sq_sig_all != 0),
      cap_(attributes.cap),
      sends_(std::min(cap_.max_send_wr, static_cast<uint32_t>(limits_.work_requests))),
      receives_(std::min(cap_.max_recv_wr, static_cast<uint32_t>(limits_.work_requests))) {
  handle_.self = this;
  if (extended_) set_up_extended_send(handle_.ex);
  ibv_qp& qp = handle_.ex.qp_base;
  qp.context = &context.verbs.context;
  qp.qp_context = attributes.qp_context;
  qp.pd = attributes.pd;
  qp.send_cq = attributes.send_cq;
  qp.recv_cq = attributes.recv_cq;
  qp.qp_num = number;
  qp.handle = number;
  qp.state = IBV_QPS_RESET;
  qp.qp_type = IBV_QPT_UC;
  pthread_mutex_init(&qp.mutex, nullptr);
  pthread_cond_init(&qp.cond, nullptr);
}

QueuePair::~QueuePair() {
  device_.release_queue_pair(ibv()->qp_num);
  pthread_cond_destroy(&ibv()->cond);
  pthread_mutex_destroy(&ibv()->mutex);
}

void QueuePair::set_state(ibv_qp_state state) {
  state_.store(state, std::memory_order_release);
  ibv()->state = state;
}

void QueuePair::reset() {
  writer_.reset();
  incoming_.store(nullptr);
  reader_.reset();
  sends_.clear();
  sends_waiting_.store(0);
  taken_ = 0;
  receives_.clear();
  attributes_ = {};
  set_state(IBV_QPS_RESET);
}

int QueuePair::modify(const ibv_qp_attr& attributes, int mask) {
  if (const int error = device_.fault(Call::modify_qp)) return error;
  const std::scoped_lock lock(send_mutex_, receive_mutex_);
  const ibv_qp_state from = state_.load(std::memory_order_relaxed);
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attributes.qp_state : from;
  if ((mask & IBV_QP_CUR_STATE) != 0 && attributes.cur_qp_state != from) return EINVAL;
  if (to == IBV_QPS_RESET) {
    reset();
    return 0;
  }
  if (to == IBV_QPS_ERR) {
    set_state(IBV_QPS_ERR);
    return 0;
  }
  if (from == IBV_QPS_RESET && to == IBV_QPS_INIT) return to_init(attributes, mask);
  if (from == IBV_QPS_INIT && to == IBV_QPS_INIT) return fits(mask, kInitAgain) ? 0 : EINVAL;
  if (from == IBV_QPS_INIT && to == IBV_QPS_RTR) return to_ready_to_receive(attributes, mask);
  if (from == IBV_QPS_RTR && to == IBV_QPS_RTS) return to_ready_to_send(attributes, mask);
  if (from == IBV_QPS_RTS && to == IBV_QPS_RTS) return fits(mask, kReadyAgain) ? 0 : EINVAL;
  return EINVAL;
}

int QueuePair::to_init(const ibv_qp_attr& attributes, int mask) {
  if (!fits(mask, kToInit) || attributes.port_num != 1 || attributes.pkey_index != 0) return EINVAL;
  attributes_.port_num = attributes.port_num;
  attributes_.pkey_index = attributes.pkey_index;
  attributes_.qp_access_flags = attributes.qp_access_flags;
  set_state(IBV_QPS_INIT);
  return 0;
}

int QueuePair::to_ready_to_receive(const ibv_qp_attr& attributes, int mask) {
  const ibv_ah_attr& route = attributes.ah_attr;
  if (!fits(mask, kToReadyToReceive) || route.is_global == 0 || route.port_num != 1) return EINVAL;
  if (attributes.path_mtu < IBV_MTU_256 || mtu_bytes(attributes.path_mtu) > limits_.mtu) return EINVAL;
  const int source = route.grh.sgid_index;
  if (source >= device_.gid_count() || !is_ipv4_mapped(device_.gid(source))) return EINVAL;
  const Gid destination = gid_of(route.grh.dgid);
  if (!is_ipv4_mapped(destination)) return EINVAL;
  if (!device_.port_usable()) return ENETDOWN;
  if (limits_.resolve_gids && !device_.peer_has(destination)) return ETIMEDOUT;

  attributes_.ah_attr = route;
  attributes_.path_mtu = attributes.path_mtu;
  attributes_.dest_qp_num = attributes.dest_qp_num;
  attributes_.rq_psn = attributes.rq_psn;
  remote_ = attributes.dest_qp_num;
  wire_.emplace(device_.wire());
  writer_ = std::make_unique<ChannelWriter>(device_.channel(true, RdmaDevice::slot_of(ibv()->qp_num)), remote_);
  // A number that the other end never gives leads nowhere.
  if (const int slot = RdmaDevice::slot_of(remote_); slot < limits_.queue_pairs) {
    const Channel channel = device_.channel(false, slot);
    reader_ = std::make_unique<ChannelReader>(channel, remote_, ibv()->qp_num);
    incoming_.store(channel.state);
  }
  ready_ns_ = now_ns();
  set_state(IBV_QPS_RTR);
  return 0;
}

int QueuePair::to_ready_to_send(const ibv_qp_attr& attributes, int mask) {
  if (!fits(mask, kToReadyToSend)) return EINVAL;
  attributes_.sq_psn = attributes.sq_psn;
  set_state(IBV_QPS_RTS);
  device_.segment().connected(device_.rank());
  return 0;
}

void QueuePair::query(ibv_qp_attr& attributes, ibv_qp_init_attr& init) {
  const std::scoped_lock lock(send_mutex_, receive_mutex_);
  attributes = attributes_;
  attributes.qp_state = attributes.cur_qp_state = state_.load(std::memory_order_relaxed);
  attributes.cap = cap_;
  init = {};
  init.qp_context = ibv()->qp_context;
  init.send_cq = ibv()->send_cq;
  init.recv_cq = ibv()->recv_cq;
  init.cap = cap_;
  init.qp_type = IBV_QPT_UC;
  init.sq_sig_all = signal_all_;
}

}  // namespace trunkline

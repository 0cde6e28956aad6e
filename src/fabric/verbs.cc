// The verbs entry points that do something, as C programs call them.
#include "fabric/verbs.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fabric/completion.h"
#include "fabric/queue_pair.h"

// The header wraps these; here are the functions themselves.
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

namespace trunkline {
namespace {

template <typename T>
T* refuse(int error) {
  errno = error;
  return nullptr;
}

int refuse(int error) {
  errno = error;
  return -1;
}

ibv_mr* register_region(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  RdmaDevice& device = device_of(pd->context);
  if (const int error = device.fault(Call::reg_mr)) return refuse<ibv_mr>(error);
  constexpr int kRemoteWrites = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC;
  if ((access & kRemoteWrites) != 0 && (access & IBV_ACCESS_LOCAL_WRITE) == 0) return refuse<ibv_mr>(EINVAL);
  if ((access & (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_MW_BIND)) != 0) return refuse<ibv_mr>(EOPNOTSUPP);
  auto region = std::make_unique<Region>();
  region->ibv.context = pd->context;
  region->ibv.pd = pd;
  region->ibv.addr = address;
  region->ibv.length = length;
  region->iova = (access & IBV_ACCESS_ZERO_BASED) != 0 ? 0 : iova;
  region->access = access;
  if (!device.add(*region)) return refuse<ibv_mr>(ENOMEM);
  ++ProtectionDomain::of(pd).users;
  return &region.release()->ibv;
}

}  // namespace

ibv_qp* create_queue_pair(ibv_qp_init_attr_ex& attributes) {
  QueuePair* pair = QueuePair::create(Context::of(attributes.pd->context), attributes);
  if (pair == nullptr) return nullptr;
  CompletionQueue::of(attributes.send_cq).add(*pair);
  CompletionQueue::of(attributes.recv_cq).add(*pair);
  ++ProtectionDomain::of(attributes.pd).users;
  return pair->ibv();
}

ibv_cq* create_completion_queue(ibv_context* context, int entries, void* user_context, ibv_comp_channel* channel,
                                int vector) {
  if (const int error = device_of(context).fault(Call::create_cq)) return refuse<ibv_cq>(error);
  if (entries < 1 || entries > kMaxCompletions || vector < 0 || vector >= context->num_comp_vectors) {
    return refuse<ibv_cq>(EINVAL);
  }
  return (new CompletionQueue(Context::of(context), entries, user_context, channel))->ibv();
}

// The header's names of parameters are not ours. NOLINTBEGIN(readability-inconsistent-declaration-parameter-name)
extern "C" {

ibv_device** ibv_get_device_list(int* count) {
  if (count != nullptr) *count = 0;
  std::deque<RdmaDevice>* devices = rank_devices();
  if (devices == nullptr) return refuse<ibv_device*>(ENODEV);
  auto** list = new ibv_device* [devices->size() + 1] {};
  for (size_t i = 0; i < devices->size(); ++i) list[i] = (*devices)[i].ibv();
  if (count != nullptr) *count = static_cast<int>(devices->size());
  return list;
}

void ibv_free_device_list(ibv_device** list) { delete[] list; }
const char* ibv_get_device_name(ibv_device* device) { return device->name; }
int ibv_get_device_index(ibv_device*) { return -1; }
__be64 ibv_get_device_guid(ibv_device* device) { return big_endian(RdmaDevice::of(device).guid()); }
ibv_context* ibv_open_device(ibv_device* device) { return open_device(RdmaDevice::of(device)); }

int ibv_close_device(ibv_context* context) {
  close_device(context);
  return 0;
}

int ibv_query_device(ibv_context* context, ibv_device_attr* attributes) {
  return describe_device(device_of(context), *attributes);
}

// What programs older than the header's inline function pass is its structure without the last member.
int ibv_query_port(ibv_context* context, uint8_t port, struct _compat_ibv_port_attr* attributes) {
  ibv_port_attr all;
  const int error = describe_port(device_of(context), port, all);
  if (error == 0) std::memcpy(static_cast<void*>(attributes), &all, offsetof(ibv_port_attr, port_cap_flags2));
  return error;
}

int ibv_query_gid(ibv_context* context, uint8_t port, int index, ibv_gid* gid) {
  RdmaDevice& device = device_of(context);
  if (const int error = device.fault(Call::query_gid)) return refuse(error);
  if (port != 1 || index < 0 || index >= device.gid_count()) return refuse(EINVAL);
  const Gid bytes = device.gid(index);
  std::memcpy(gid->raw, bytes.data(), bytes.size());
  return 0;
}

int _ibv_query_gid_ex(ibv_context* context, uint32_t port, uint32_t index, ibv_gid_entry* entry, uint32_t flags,
                      size_t size) {
  RdmaDevice& device = device_of(context);
  if (const int error = device.fault(Call::query_gid)) return error;
  if (port != 1 || index >= static_cast<uint32_t>(device.gid_count()) || flags != 0) return EINVAL;
  const Gid bytes = device.gid(static_cast<int>(index));
  if (bytes == Gid{}) return ENODATA;
  ibv_gid_entry all{};
  std::memcpy(all.gid.raw, bytes.data(), bytes.size());
  all.gid_index = index;
  all.port_num = port;
  all.gid_type = IBV_GID_TYPE_ROCE_V2;
  std::memcpy(entry, &all, std::min(size, sizeof all));
  return 0;
}

ssize_t _ibv_query_gid_table(ibv_context* context, ibv_gid_entry* entries, size_t room, uint32_t flags, size_t size) {
  size_t count = 0;
  for (int index = 0; index < device_of(context).gid_count() && count < room; ++index) {
    auto* entry = reinterpret_cast<ibv_gid_entry*>(reinterpret_cast<char*>(entries) + count * size);
    const int error = _ibv_query_gid_ex(context, 1, static_cast<uint32_t>(index), entry, flags, size);
    if (error == 0) ++count;
    if (error != 0 && error != ENODATA) return -error;
  }
  return static_cast<ssize_t>(count);
}

// Of Debian's ibv_devinfo, from the private part of the interface. 1: RoCE v2.
int ibv_query_gid_type(ibv_context*, uint8_t, unsigned int, unsigned int* type) {
  *type = 1;
  return 0;
}

int ibv_query_pkey(ibv_context*, uint8_t port, int index, __be16* pkey) {
  if (port != 1 || index != 0) return refuse(EINVAL);
  *pkey = 0xffff;
  return 0;
}

int ibv_get_pkey_index(ibv_context*, uint8_t port, __be16 pkey) {
  return port == 1 && pkey == 0xffff ? 0 : refuse(EINVAL);
}

ibv_pd* ibv_alloc_pd(ibv_context* context) {
  RdmaDevice& device = device_of(context);
  if (const int error = device.fault(Call::alloc_pd)) return refuse<ibv_pd>(error);
  if (!device.port_usable()) return refuse<ibv_pd>(ENETDOWN);
  auto* pd = new ProtectionDomain;
  pd->ibv.context = context;
  return &pd->ibv;
}

int ibv_dealloc_pd(ibv_pd* pd) {
  if (ProtectionDomain::of(pd).users > 0) return EBUSY;
  delete &ProtectionDomain::of(pd);
  return 0;
}

ibv_mr* ibv_reg_mr(ibv_pd* pd, void* address, size_t length, int access) {
  return register_region(pd, address, length, reinterpret_cast<uint64_t>(address), access);
}

ibv_mr* ibv_reg_mr_iova(ibv_pd* pd, void* address, size_t length, uint64_t iova, int access) {
  return register_region(pd, address, length, iova, access);
}

ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* address, size_t length, uint64_t iova, unsigned int access) {
  return register_region(pd, address, length, iova, static_cast<int>(access & ~IBV_ACCESS_OPTIONAL_RANGE));
}

int ibv_dereg_mr(ibv_mr* mr) {
  RdmaDevice& device = device_of(mr->context);
  if (const int error = device.fault(Call::dereg_mr)) return error;
  const std::unique_ptr<Region> region(reinterpret_cast<Region*>(mr));
  device.remove(*region);
  --ProtectionDomain::of(mr->pd).users;
  return 0;
}

ibv_cq* ibv_create_cq(ibv_context* context, int entries, void* user_context, ibv_comp_channel* channel, int vector) {
  return create_completion_queue(context, entries, user_context, channel, vector);
}

int ibv_resize_cq(ibv_cq* cq, int entries) {
  if (entries < 1 || entries > kMaxCompletions) return EINVAL;
  cq->cqe = entries;
  return 0;
}

int ibv_destroy_cq(ibv_cq* cq) {
  if (const int error = device_of(cq->context).fault(Call::destroy_cq)) return error;
  CompletionQueue& queue = CompletionQueue::of(cq);
  if (queue.in_use()) return EBUSY;
  delete &queue;
  return 0;
}

ibv_comp_channel* ibv_create_comp_channel(ibv_context* context) {
  try {
    return (new EventChannel(context))->ibv();
  } catch (const Error&) {
    return refuse<ibv_comp_channel>(EMFILE);
  }
}

int ibv_destroy_comp_channel(ibv_comp_channel* channel) {
  if (channel->refcnt > 0) return EBUSY;
  delete &EventChannel::of(channel);
  return 0;
}

int ibv_get_cq_event(ibv_comp_channel* channel, ibv_cq** cq, void** user_context) {
  CompletionQueue* queue = EventChannel::of(channel).next();
  if (queue == nullptr) return -1;
  *cq = queue->ibv();
  *user_context = (*cq)->cq_context;
  return 0;
}

void ibv_ack_cq_events(ibv_cq* cq, unsigned int count) {
  pthread_mutex_lock(&cq->mutex);
  cq->comp_events_completed += count;
  pthread_mutex_unlock(&cq->mutex);
}

// Waits as long as the program does: no event ever comes.
int ibv_get_async_event(ibv_context* context, ibv_async_event*) {
  uint64_t value = 0;
  while (::read(context->async_fd, &value, sizeof value) < 0) {
    if (errno != EINTR) return -1;
  }
  return refuse(EIO);
}

void ibv_ack_async_event(ibv_async_event*) {}

ibv_qp* ibv_create_qp(ibv_pd* pd, ibv_qp_init_attr* attributes) {
  ibv_qp_init_attr_ex all{};
  std::memcpy(&all, attributes, sizeof *attributes);  // the extended structure begins with the plain one
  all.comp_mask = IBV_QP_INIT_ATTR_PD;
  all.pd = pd;
  return create_queue_pair(all);
}

int ibv_modify_qp(ibv_qp* qp, ibv_qp_attr* attributes, int mask) { return QueuePair::of(qp).modify(*attributes, mask); }

int ibv_query_qp(ibv_qp* qp, ibv_qp_attr* attributes, int, ibv_qp_init_attr* init) {
  QueuePair::of(qp).query(*attributes, *init);
  return 0;
}

int ibv_destroy_qp(ibv_qp* qp) {
  if (const int error = device_of(qp->context).fault(Call::destroy_qp)) return error;
  QueuePair& pair = QueuePair::of(qp);
  CompletionQueue::of(qp->send_cq).remove(pair);
  CompletionQueue::of(qp->recv_cq).remove(pair);
  --ProtectionDomain::of(qp->pd).users;
  delete &pair;
  return 0;
}

ibv_qp_ex* ibv_qp_to_qp_ex(ibv_qp* qp) { return QueuePair::of(qp).extended(); }
int ibv_query_qp_data_in_order(ibv_qp*, ibv_wr_opcode, uint32_t) { return 0; }

int ibv_fork_init() { return 0; }
ibv_fork_status ibv_is_fork_initialized() { return IBV_FORK_UNNEEDED; }
int ibv_dontfork_range(void*, size_t) { return 0; }
int ibv_dofork_range(void*, size_t) { return 0; }

}  // extern "C"
// NOLINTEND(readability-inconsistent-declaration-parameter-name)

}  // namespace trunkline

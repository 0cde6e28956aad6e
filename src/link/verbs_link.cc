#include "link/verbs_link.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <random>

#include "base/fail.h"
#include "base/log.h"

namespace trunkline {
namespace {

constexpr uint32_t kOldMessage = 4096;  // the longest message that macOS before 26.3 takes
constexpr size_t kFewest = 8;           // work requests that are worth a queue pair

// A completion in error need not say which kind it is of, so the id of a post does.
constexpr uint64_t kReceive = uint64_t{1} << 63;

bool is_full(int error) { return error == ENOMEM || error == EAGAIN || error == ENOBUFS; }

// Verbs calls return errno, or -1 and leave it there.
int error_of(int result) { return result < 0 ? (errno != 0 ? errno : EIO) : result; }

int post_receive(ibv_qp* qp, uint32_t key, std::byte* slot, uint32_t bytes, uint64_t id) {
  ibv_sge sge{};
  sge.addr = reinterpret_cast<uint64_t>(slot);
  sge.length = bytes;
  sge.lkey = key;
  ibv_recv_wr request{};
  request.wr_id = id | kReceive;
  request.sg_list = &sge;
  request.num_sge = 1;
  ibv_recv_wr* bad = nullptr;
  return error_of(ibv_post_recv(qp, &request, &bad));
}

const char* name_of(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_LOC_LEN_ERR: return "a message longer than its receive";
    case IBV_WC_LOC_QP_OP_ERR: return "local queue pair operation error";
    case IBV_WC_LOC_PROT_ERR: return "local protection error";
    case IBV_WC_WR_FLUSH_ERR: return "queue pair in the error state";
    case IBV_WC_GENERAL_ERR: return "general error";
    case IBV_WC_FATAL_ERR: return "fatal error";
    default: return "error";
  }
}

// A receive that fails alone leaves its queue pair as it was.
bool ends_queue_pair(ibv_wc_status status, bool receive) { return !receive || status != IBV_WC_GENERAL_ERR; }

}  // namespace

VerbsLink::VerbsLink(std::shared_ptr<VerbsDevice> device, std::shared_ptr<VerbsRegion> region, size_t receives,
                     size_t sends)
    : caller_(std::make_shared<CallWatch::Caller>(device->subject())),
      device_(std::move(device)),
      region_(std::move(region)),
      name_(device_->name()),
      key_(region_->key()) {
  const size_t most = device_->most_work_requests() > 0 ? static_cast<size_t>(device_->most_work_requests()) : 4095;
  try {
    create(std::min(receives, most), std::min(sends, most));
    ibv_qp_attr attributes{};
    attributes.qp_state = IBV_QPS_INIT;
    attributes.port_num = 1;
    attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    const int error = modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error != 0) {
      fail(ErrorKind::system, "{}: a new queue pair cannot be initialized: {}; unplug and plug its cable",
           device_->subject(), std::strerror(error));
    }
  } catch (...) {
    destroy();
    throw;
  }
  address_ = {device_->gid(), qp_->qp_num, std::random_device()() & 0xff'ffff};
}

VerbsLink::~VerbsLink() { destroy(); }

void VerbsLink::be_watched(std::shared_ptr<CallWatch> watch) {
  watch_ = std::move(watch);
  caller_ = watch_->add(device_->subject());
}

void VerbsLink::create(size_t receives, size_t sends) {
  const auto made = device_->calls().run(
      "create_cq",
      [create_cq = device_->library().create_cq, context = device_->context(),
       entries = static_cast<int>(receives + sends)] { return create_cq(context, entries, nullptr, nullptr, 0); });
  cq_ = made.value;
  if (cq_ == nullptr) {
    fail(ErrorKind::system, "{} makes no completion queue of {} entries: {}", device_->subject(), receives + sends,
         std::strerror(made.error));
  }
  int error = 0;
  for (;; receives = std::max(receives / 2, kFewest), sends = std::max(sends / 2, kFewest)) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq_;
    wanted.qp_type = IBV_QPT_UC;
    wanted.sq_sig_all = 1;
    wanted.cap.max_recv_wr = static_cast<uint32_t>(receives);
    wanted.cap.max_send_wr = static_cast<uint32_t>(sends);
    wanted.cap.max_recv_sge = wanted.cap.max_send_sge = 1;
    const auto tried = device_->calls().run("create_qp", [create_qp = device_->library().create_qp, pd = device_->pd(),
                                                          wanted]() mutable { return create_qp(pd, &wanted); });
    qp_ = tried.value;
    error = tried.error;
    const bool too_many = error == EINVAL || error == ENOMEM;
    if (qp_ != nullptr || !too_many || std::max(receives, sends) <= kFewest) break;
  }
  sends_ = sends;
  sending_ = Ring<uint64_t>(sends);
  if (qp_ != nullptr) return;
  if (error == EBUSY) {
    fail(
        ErrorKind::system,
        "{} has no queue pair left (one a lane; such a device has 10): ask for fewer lanes, or end other programs that "
        "use it; those that a crashed program left are free after a reboot",
        device_->subject());
  }
  fail(ErrorKind::system, "{} makes no queue pair: {}", device_->subject(), std::strerror(error));
}

void VerbsLink::destroy() {
  if (qp_ != nullptr) {
    release(*device_, "destroy_qp", [call = device_->library().destroy_qp, qp = qp_] { return call(qp); });
  }
  if (cq_ != nullptr) {
    release(*device_, "destroy_cq", [call = device_->library().destroy_cq, cq = cq_] { return call(cq); });
  }
  qp_ = nullptr;
  cq_ = nullptr;
}

int VerbsLink::modify(ibv_qp_attr attributes, int mask) {
  return device_->calls()
      .run("modify_qp", [call = device_->library().modify_qp, qp = qp_, attributes,
                         mask]() mutable { return error_of(call(qp, &attributes, mask)); })
      .value;
}

int VerbsLink::connect(const VerbsAddress& peer) {
  ibv_qp_attr receive{};
  receive.qp_state = IBV_QPS_RTR;
  receive.path_mtu = IBV_MTU_1024;
  receive.dest_qp_num = peer.queue_pair;
  receive.rq_psn = peer.first_packet;
  receive.ah_attr.port_num = 1;
  receive.ah_attr.is_global = 1;
  receive.ah_attr.grh.dgid = peer.gid;
  receive.ah_attr.grh.sgid_index = device_->gid_index();
  receive.ah_attr.grh.hop_limit = 1;
  const int error = modify(receive, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN);
  if (error != 0) return error;
  ibv_qp_attr send{};
  send.qp_state = IBV_QPS_RTS;
  send.sq_psn = address_.first_packet;
  return modify(send, IBV_QP_STATE | IBV_QP_SQ_PSN);
}

size_t VerbsLink::post_receives(std::byte* slots, size_t slot_bytes, size_t count) {
  const auto posted = device_->calls().run("post_recv", [qp = qp_, key = key_, slots, slot_bytes, count] {
    std::pair<size_t, int> result{};
    auto& [done, error] = result;
    while (done < count && error == 0) {
      error = trunkline::post_receive(qp, key, slots + done * slot_bytes, static_cast<uint32_t>(slot_bytes), done);
      if (error == 0) ++done;
    }
    return result;
  });
  const auto [done, error] = posted.value;
  if ((error != 0 && !is_full(error)) || (done < count && done < kFewest)) {
    fail(ErrorKind::system, "{} took {} of {} receives of {} bytes, then: {}", device_->subject(), done, count,
         slot_bytes, std::strerror(error));
  }
  // A device that takes fewer than it said does so in both directions.
  if (done < count) sends_ = std::min(sends_, done);
  return done;
}

bool VerbsLink::post_send(const std::byte* message, uint32_t bytes, uint64_t id) {
  if (!fault_.empty() || sending_.full()) return false;
  ibv_sge sge{};
  sge.addr = reinterpret_cast<uint64_t>(message);
  sge.length = bytes;
  sge.lkey = key_;
  ibv_send_wr request{};
  request.wr_id = id;
  request.sg_list = &sge;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad = nullptr;
  int error = 0;
  {
    const CallWatch::Caller::Call call(*caller_, "post_send");
    error = error_of(ibv_post_send(qp_, &request, &bad));
  }
  if (error != 0 && !is_full(error)) {
    const bool long_message = error == EINVAL && bytes > kOldMessage;
    give_up(fmt::format(
        "a send of {} bytes is refused: {}{}", bytes, std::strerror(error),
        long_message ? " (before macOS 26.3 a message has at most 4096: set TRUNKLINE_FRAME_BYTES to 4032)" : ""));
  }
  if (error == 0) sending_.push(id);
  return error == 0;
}

int VerbsLink::try_receive(std::byte* slot, uint32_t bytes, uint64_t id) {
  int error = 0;
  {
    const CallWatch::Caller::Call call(*caller_, "post_recv");
    error = trunkline::post_receive(qp_, key_, slot, bytes, id);
  }
  if (error != 0 && !is_full(error)) give_up(fmt::format("a receive is refused: {}", std::strerror(error)));
  return error;
}

void VerbsLink::post_receive(std::byte* slot, uint32_t bytes, uint64_t id) {
  if (!fault_.empty()) return;
  if (!refused_.empty() || try_receive(slot, bytes, id) != 0) refused_.push_back({slot, bytes, id});
}

size_t VerbsLink::poll(std::span<MessageCompletion> completions) {
  if (silent_) {
    size_t told = 0;
    for (; told < completions.size() && !sending_.empty(); ++told) {
      completions[told] = {MessageCompletion::Kind::sent, false, 0, sending_.pop()};
    }
    return told;
  }
  std::array<ibv_wc, 32> taken;
  int count = 0;
  {
    const CallWatch::Caller::Call call(*caller_, "poll_cq");
    count = ibv_poll_cq(cq_, static_cast<int>(std::min(taken.size(), completions.size())), taken.data());
  }
  if (count < 0) {
    give_up(fmt::format("its completions cannot be read: {}", std::strerror(error_of(count))));
    silent_ = true;
    return 0;
  }
  size_t told = 0;
  for (int i = 0; i < count; ++i) {
    const ibv_wc& each = taken[i];
    const bool receive = (each.wr_id & kReceive) != 0, good = each.status == IBV_WC_SUCCESS;
    if (!good && ends_queue_pair(each.status, receive)) {
      give_up(fmt::format("{} (status {})", name_of(each.status), static_cast<int>(each.status)));
      if (receive) continue;
    }
    if (!receive && !sending_.empty()) sending_.pop();
    completions[told++] = {receive ? MessageCompletion::Kind::received : MessageCompletion::Kind::sent, good,
                           receive && good ? each.byte_len : 0, each.wr_id & ~kReceive};
  }
  while (!refused_.empty() && count > 0 && fault_.empty()) {
    const Receive next = refused_.front();
    if (try_receive(next.slot, next.bytes, next.id) != 0) break;
    refused_.erase(refused_.begin());
  }
  return told;
}

void VerbsLink::give_up(std::string fault) {
  if (!fault_.empty()) return;
  fault_ = fmt::format("{}: cable {}: {}", device_->subject(), name_, fault);
  spdlog::error("{}: it is used no more; unplug and plug it, then restart the job", fault_);
  // So that what it still has is completed.
  try {
    ibv_qp_attr error{};
    error.qp_state = IBV_QPS_ERR;
    silent_ = modify(error, IBV_QP_STATE) != 0;
  } catch (const Error& hang) {
    spdlog::error("{}", hang.what());
    silent_ = true;
  }
}

}  // namespace trunkline

// Posting and completing. A message is copied into its channel when it is posted and out of it when the receiver polls;
// when it arrives, and whether, is settled at posting, and the receiver decides whether a receive had been posted by
// then.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "fabric/queue_pair.h"

namespace trunkline {

ScatterList::ScatterList(const ibv_sge* from, int number) : count(number) { std::copy_n(from, number, entries); }

uint64_t ScatterList::length() const {
  uint64_t total = 0;
  for (int i = 0; i < count; ++i) total += entries[i].length;
  return total;
}

template <typename Byte>
bool QueuePair::resolve(const ScatterList& list, uint64_t bytes, int access,
                        std::vector<std::span<Byte>>& parts) const {
  parts.clear();
  for (int i = 0; i < list.count && bytes > 0; ++i) {
    const ibv_sge& entry = list.entries[i];
    if (entry.length == 0) continue;
    const Region* region = device_.region(entry.lkey);
    if (region == nullptr || region->ibv.pd != handle_.ex.qp_base.pd || (region->access & access) != access)
      return false;
    const uint64_t offset = entry.addr - region->iova;
    if (offset > region->ibv.length || entry.length > region->ibv.length - offset) return false;
    const uint64_t used = std::min<uint64_t>(entry.length, bytes);
    parts.emplace_back(static_cast<Byte*>(region->ibv.addr) + offset, used);
    bytes -= used;
  }
  return true;
}

int QueuePair::post_send(ibv_send_wr* request, ibv_send_wr** bad) {
  int error = device_.fault(Call::post_send);
  const std::lock_guard lock(send_mutex_);
  for (; request != nullptr && error == 0; request = request->next) {
    error = post(*request);
    if (error != 0) break;
  }
  if (error != 0 && bad != nullptr) *bad = request;
  if (sends_.size() > taken_) take_sends(now_ns());
  sends_waiting_.store(sends_.size(), std::memory_order_relaxed);
  return error;
}

size_t QueuePair::send_room() {
  const std::lock_guard lock(send_mutex_);
  return sends_.capacity() - sends_.size();
}

int QueuePair::post(const ibv_send_wr& request) {
  const ibv_qp_state state = state_.load(std::memory_order_relaxed);
  if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) return EINVAL;
  if (request.opcode != IBV_WR_SEND && request.opcode != IBV_WR_SEND_WITH_IMM) return EOPNOTSUPP;
  if (request.num_sge < 0 || request.num_sge > limits_.scatter_entries) return EINVAL;
  const ScatterList list(request.sg_list, request.num_sge);
  if (list.length() > static_cast<uint64_t>(limits_.message_bytes)) return EINVAL;
  const bool inlined = (request.send_flags & IBV_SEND_INLINE) != 0;
  if (inlined && list.length() > std::min<uint64_t>(cap_.max_inline_data, limits_.inline_bytes)) return EINVAL;
  if (sends_.full()) return ENOMEM;
  SendRequest& send = sends_.push();
  send.id = request.wr_id;
  send.signaled = signal_all_ || (request.send_flags & IBV_SEND_SIGNALED) != 0;
  send.opcode = request.opcode;
  send.immediate = request.imm_data;
  send.list = list;
  send.inlined = inlined;
  if (inlined) {
    for (int i = 0; i < list.count; ++i) {
      const auto* bytes = reinterpret_cast<const std::byte*>(list.entries[i].addr);
      send.inline_data.insert(send.inline_data.end(), bytes, bytes + list.entries[i].length);
    }
  }
  return 0;
}

void QueuePair::take_sends(uint64_t now) {
  while (taken_ < sends_.size() && take(sends_[taken_], now)) ++taken_;
}

// Whether nothing but time is left to do for the request.
bool QueuePair::take(SendRequest& send, uint64_t now) {
  if (state_.load(std::memory_order_relaxed) == IBV_QPS_ERR) {
    send.status = IBV_WC_WR_FLUSH_ERR;
    return true;
  }
  const uint64_t length = send.list.length();
  if (send.inlined) {
    send_parts_.assign(1, std::span<const std::byte>(send.inline_data));
  } else if (!resolve(send.list, length, 0, send_parts_)) {
    send.status = IBV_WC_LOC_PROT_ERR;
    set_state(IBV_QPS_ERR);
    return true;
  }
  const bool late = send.reserved;
  if (!send.reserved) {
    send.passage = wire_->take(length, now);
    send.reserved = true;
  }
  if (send.passage.fate.lost) return true;
  Message message;
  message.visible_ns = send.passage.visible_ns;
  message.damage = send.passage.fate.damage;
  message.length = static_cast<uint32_t>(length);
  message.source = ibv()->qp_num;
  message.destination = remote_;
  message.immediate = send.immediate;
  message.has_immediate = send.opcode == IBV_WR_SEND_WITH_IMM;
  message.receive_error = send.passage.fate.receive_error;
  if (late) message.visible_ns = std::max(message.visible_ns, now + wire_->delay_ns());
  if (writer_->write(message, send_parts_)) {
    if (late && send.passage.taken_ns != 0) send.passage.taken_ns = std::max(send.passage.taken_ns, now);
    return true;
  }
  // No room. Once the message would have arrived, it is certain to be lost if there are more messages before it than
  // the other end can have receives posted, or nobody there who could still take one.
  if (now < send.passage.visible_ns) return false;
  return writer_->unread() >= static_cast<uint64_t>(limits_.work_requests) || !device_.peer_alive(remote_);
}

bool QueuePair::settle_sends(LazyNow& now) {
  while (!sends_.empty()) {
    if (taken_ < sends_.size()) take_sends(now());
    if (taken_ == 0) return false;
    const SendRequest& send = sends_.front();
    const bool on_its_way = send.passage.taken_ns != 0 && state_.load(std::memory_order_relaxed) != IBV_QPS_ERR;
    if (send.status == IBV_WC_SUCCESS && on_its_way && send.passage.taken_ns > now()) return false;
    if (send.signaled || send.status != IBV_WC_SUCCESS) return true;
    sends_.pop();
    --taken_;
  }
  return false;
}

int QueuePair::poll_sends(ibv_wc* completions, int room, LazyNow& now) {
  if (sends_waiting_.load(std::memory_order_relaxed) == 0) return 0;
  const std::lock_guard lock(send_mutex_);
  int count = 0;
  while (count < room && settle_sends(now)) {
    if (completions == nullptr) return 1;
    const SendRequest& send = sends_.front();
    ibv_wc& completion = completions[count++] = {};
    completion.wr_id = send.id;
    completion.status = send.status;
    completion.opcode = IBV_WC_SEND;
    completion.byte_len = static_cast<uint32_t>(send.list.length());
    completion.qp_num = ibv()->qp_num;
    sends_.pop();
    --taken_;
  }
  sends_waiting_.store(sends_.size(), std::memory_order_relaxed);
  return count;
}

int QueuePair::post_receive(ibv_recv_wr* request, ibv_recv_wr** bad) {
  int error = device_.fault(Call::post_recv);
  const std::lock_guard lock(receive_mutex_);
  const uint64_t now = now_ns();
  for (; request != nullptr && error == 0; request = request->next) {
    error = post(*request, now);
    if (error != 0) break;
  }
  if (error != 0 && bad != nullptr) *bad = request;
  return error;
}

int QueuePair::post(const ibv_recv_wr& request, uint64_t now) {
  if (state_.load(std::memory_order_relaxed) == IBV_QPS_RESET) return EINVAL;
  if (request.num_sge < 0 || request.num_sge > limits_.scatter_entries) return EINVAL;
  if (receives_.full()) return ENOMEM;
  ReceiveRequest& receive = receives_.push();
  receive.id = request.wr_id;
  receive.posted_ns = now;
  receive.list = ScatterList(request.sg_list, request.num_sge);
  return 0;
}

// Leaves in arrived_ the message for the first receive. One that came before a receive was posted for it is lost.
bool QueuePair::settle_receives(LazyNow& now) {
  arrived_ = nullptr;
  if (state_.load(std::memory_order_relaxed) == IBV_QPS_ERR) return !receives_.empty();
  if (reader_ == nullptr) return false;
  while (const Message* message = reader_->front()) {
    if (message->visible_ns > now()) return false;
    if (!receives_.empty() && std::max(ready_ns_, receives_.front().posted_ns) <= message->visible_ns) {
      arrived_ = message;
      return true;
    }
    reader_->pop();
  }
  return false;
}

void QueuePair::complete_receive(ibv_wc& completion) {
  const ReceiveRequest& receive = receives_.front();
  completion.wr_id = receive.id;
  completion.opcode = IBV_WC_RECV;
  completion.qp_num = ibv()->qp_num;
  completion.src_qp = remote_;
  if (arrived_ == nullptr) {
    completion.status = IBV_WC_WR_FLUSH_ERR;
    return;
  }
  const Message& message = *arrived_;
  if (message.receive_error != 0) {
    completion.status = IBV_WC_GENERAL_ERR;
  } else if (message.length > receive.list.length()) {
    completion.status = IBV_WC_LOC_LEN_ERR;
    set_state(IBV_QPS_ERR);
  } else if (!resolve(receive.list, message.length, IBV_ACCESS_LOCAL_WRITE, receive_parts_)) {
    completion.status = IBV_WC_LOC_PROT_ERR;
    set_state(IBV_QPS_ERR);
  } else {
    reader_->copy(message, receive_parts_);
    if (message.damage != 0) apply_damage(message.damage, receive_parts_);
    completion.byte_len = message.length;
    if (message.has_immediate != 0) {
      completion.imm_data = message.immediate;
      completion.wc_flags = IBV_WC_WITH_IMM;
    }
  }
}

int QueuePair::poll_receives(ibv_wc* completions, int room, LazyNow& now) {
  if (state_.load(std::memory_order_acquire) != IBV_QPS_ERR) {
    const Channel::State* incoming = incoming_.load(std::memory_order_acquire);
    if (incoming == nullptr ||
        incoming->head.load(std::memory_order_relaxed) == incoming->tail.load(std::memory_order_relaxed)) {
      return 0;
    }
  }
  const std::lock_guard lock(receive_mutex_);
  int count = 0;
  while (count < room && settle_receives(now)) {
    if (completions == nullptr) return 1;
    ibv_wc& completion = completions[count] = {};
    complete_receive(completion);
    if (arrived_ != nullptr && !reader_->pop()) continue;  // it was another queue pair's, which had this number before
    receives_.pop();
    ++count;
  }
  return count;
}

}  // namespace trunkline

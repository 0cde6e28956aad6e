// Unreliable-connected queue pairs.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "fabric/channel.h"
#include "fabric/device.h"
#include "fabric/wire.h"

namespace trunkline {

// The clock, read at most once in a poll, and only if something depends on it.
class LazyNow {
 public:
  uint64_t operator()() {
    if (value_ == 0) value_ = now_ns();
    return value_;
  }

 private:
  uint64_t value_ = 0;
};

// A queue of fixed capacity.
template <typename T>
class Queue {
 public:
  explicit Queue(size_t capacity) : items_(capacity) {}
  bool empty() const { return count_ == 0; }
  bool full() const { return count_ == items_.size(); }
  size_t size() const { return count_; }
  size_t capacity() const { return items_.size(); }
  T& operator[](size_t i) { return items_[(first_ + i) % items_.size()]; }
  T& front() { return items_[first_]; }
  T& push() { return (*this)[count_++] = T{}; }
  void pop() {
    first_ = (first_ + 1) % items_.size();
    --count_;
  }
  void clear() { count_ = 0; }

 private:
  std::vector<T> items_;
  size_t first_ = 0;
  size_t count_ = 0;
};

inline constexpr int kMaxScatterEntries = 4;

struct ScatterList {
  int count = 0;
  ibv_sge entries[kMaxScatterEntries];

  ScatterList() = default;
  ScatterList(const ibv_sge* from, int number);
  uint64_t length() const;
};

// What has been begun on an extended queue pair and not yet posted.
struct SendBatch {
  struct Entry {
    ibv_send_wr request{};
    ScatterList list;
  };
  std::vector<Entry> entries;
  int error = 0;
};

// Two threads may use a queue pair at once; sending and receiving have a lock each, taken in this order by what needs
// both.
class QueuePair {
 public:
  // Null, errno set: the device has no more, or the attributes ask for what it has not.
  static QueuePair* create(Context& context, const ibv_qp_init_attr_ex& attributes);
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  static QueuePair& of(ibv_qp* qp) { return *reinterpret_cast<Handle*>(qp)->self; }
  static QueuePair& of(ibv_qp_ex* qp) { return *reinterpret_cast<Handle*>(qp)->self; }
  ibv_qp* ibv() { return &handle_.ex.qp_base; }
  ibv_qp_ex* extended() { return extended_ ? &handle_.ex : nullptr; }

  int modify(const ibv_qp_attr& attributes, int mask);
  void query(ibv_qp_attr& attributes, ibv_qp_init_attr& init);

  int post_send(ibv_send_wr* request, ibv_send_wr** bad);
  int post_receive(ibv_recv_wr* request, ibv_recv_wr** bad);
  size_t send_room();  // requests that post_send would still accept

  SendBatch batch;

  // Up to `room` completions; their number. Without `completions`: 1 if there is one.
  int poll_sends(ibv_wc* completions, int room, LazyNow& now);
  int poll_receives(ibv_wc* completions, int room, LazyNow& now);

 private:
  struct Handle {
    ibv_qp_ex ex{};
    QueuePair* self = nullptr;
  };

  struct SendRequest {
    uint64_t id = 0;
    bool signaled = false;
    bool reserved = false;  // `passage` is known
    bool taken = false;     // nothing but time stands between it and its completion
    bool inlined = false;
    ibv_wr_opcode opcode = IBV_WR_SEND;
    unsigned int immediate = 0;
    ibv_wc_status status = IBV_WC_SUCCESS;
    Passage passage{};
    ScatterList list;
    std::vector<std::byte> inline_data;
  };

  struct ReceiveRequest {
    uint64_t id = 0;
    uint64_t posted_ns = 0;
    ScatterList list;
  };

  QueuePair(Context& context, const ibv_qp_init_attr_ex& attributes, uint32_t number);

  int to_init(const ibv_qp_attr& attributes, int mask);
  int to_ready_to_receive(const ibv_qp_attr& attributes, int mask);
  int to_ready_to_send(const ibv_qp_attr& attributes, int mask);
  void reset();
  void set_state(ibv_qp_state state);

  int post(const ibv_send_wr& request);
  int post(const ibv_recv_wr& request, uint64_t now);
  // Hands waiting sends to the cable, in order, as far as there is room.
  void take_sends(uint64_t now);
  bool take(SendRequest& send, uint64_t now);
  // Whether the first send, or the first receive, has completed.
  bool settle_sends(LazyNow& now);
  bool settle_receives(LazyNow& now);
  void complete_receive(ibv_wc& completion);
  // False: a key or an address is not one of this queue pair's protection domain.
  template <typename Byte>
  bool resolve(const ScatterList& list, uint64_t bytes, int access, std::vector<std::span<Byte>>& parts) const;

  Context& context_;
  RdmaDevice& device_;
  const DeviceLimits& limits_;
  std::optional<Wire> wire_;
  bool extended_ = false;
  bool signal_all_ = false;
  ibv_qp_cap cap_{};
  ibv_qp_attr attributes_{};
  Handle handle_;

  std::atomic<ibv_qp_state> state_{IBV_QPS_RESET};
  uint32_t remote_ = 0;

  std::mutex send_mutex_;
  std::unique_ptr<ChannelWriter> writer_;
  Queue<SendRequest> sends_;
  std::atomic<size_t> sends_waiting_{0};  // sends_.size(), to be read without the lock
  size_t taken_ = 0;                      // of sends_, from the front
  std::vector<std::span<const std::byte>> send_parts_;

  std::mutex receive_mutex_;
  std::unique_ptr<ChannelReader> reader_;
  std::atomic<Channel::State*> incoming_{nullptr};  // reader_'s, likewise
  uint64_t ready_ns_ = 0;                           // since when it is ready to receive
  const Message* arrived_ = nullptr;                // what settle_receives has found for the first receive
  Queue<ReceiveRequest> receives_;
  std::vector<std::span<std::byte>> receive_parts_;
};

}  // namespace trunkline

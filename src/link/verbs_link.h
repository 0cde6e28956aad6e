// Link over RDMA: one unreliable-connected (UC) queue pair on one device, with a completion queue of its own.
//
// Once the device reports more than a failed receive (a queue pair in the error state, a post that it refuses), the
// link is out of use: fault() says why, it takes no more, and what was on its way is completed. So the other links of a
// trunk carry on as after a cut.
#pragma once

#include <vector>

#include "link/call_watch.h"
#include "link/message_link.h"
#include "link/ring.h"
#include "link/verbs_device.h"

namespace trunkline {

// Where a queue pair is reached.
struct VerbsAddress {
  ibv_gid gid{};
  uint32_t queue_pair = 0;
  uint32_t first_packet = 0;  // its packet sequence number
};

class VerbsLink final : public MessageLink {
 public:
  // Makes the queue pair; `receives` and `sends`: how many of each are wanted. The region is where its messages lie.
  // Throws Error(system).
  VerbsLink(std::shared_ptr<VerbsDevice> device, std::shared_ptr<VerbsRegion> region, size_t receives, size_t sends);
  ~VerbsLink() override;
  VerbsLink(const VerbsLink&) = delete;
  VerbsLink& operator=(const VerbsLink&) = delete;

  // Setting up, once and in this order. Calls that hang throw Error(system).
  VerbsAddress address() const { return address_; }
  int connect(const VerbsAddress& peer);  // 0, or the errno with which the device refused to
  // Posts slots 0, 1, ... until `count` or the device takes no more; returns how many. Before the peer may send.
  size_t post_receives(std::byte* slots, size_t slot_bytes, size_t count);

  size_t sends() const { return sends_; }
  void set_name(std::string name) { name_ = std::move(name); }
  // From now on, for what follows.
  void be_watched(std::shared_ptr<CallWatch> watch);

  const std::string& name() const override { return name_; }
  const std::string& fault() const override { return fault_; }
  bool post_send(const std::byte* message, uint32_t bytes, uint64_t id) override;
  void post_receive(std::byte* slot, uint32_t bytes, uint64_t id) override;
  size_t poll(std::span<MessageCompletion> completions) override;

 private:
  void create(size_t receives, size_t sends);
  int modify(ibv_qp_attr attributes, int mask);
  void destroy();
  void give_up(std::string fault);
  int try_receive(std::byte* slot, uint32_t bytes, uint64_t id);

  struct Receive {
    std::byte* slot;
    uint32_t bytes;
    uint64_t id;
  };

  std::shared_ptr<CallWatch> watch_;
  std::shared_ptr<CallWatch::Caller> caller_;
  std::shared_ptr<VerbsDevice> device_;
  std::shared_ptr<VerbsRegion> region_;
  std::string name_, fault_;
  uint32_t key_;
  ibv_cq* cq_ = nullptr;
  ibv_qp* qp_ = nullptr;
  VerbsAddress address_;
  size_t sends_ = 0;
  Ring<uint64_t> sending_{1};     // ids of the sends that have not completed
  std::vector<Receive> refused_;  // receives that the device did not take at once
  bool silent_ = false;           // there is a fault, and the device completes nothing any more
};

}  // namespace trunkline

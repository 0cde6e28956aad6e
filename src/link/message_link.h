// MessageLink: one path of messages between two ranks that may lose or damage them but keeps their order: a queue pair
// on a cable, or a TCP connection used in the same way. It never waits. One thread at a time uses it.
//
// A message lands in the oldest posted receive. One that finds none is lost, and its sender does not learn of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace trunkline {

struct MessageCompletion {
  enum class Kind : uint8_t { sent, received };
  Kind kind;
  bool good;       // of a receive that is not: the slot holds nothing, but is to be posted again
  uint32_t bytes;  // received
  uint64_t id;     // of the post
};

class MessageLink {
 public:
  virtual ~MessageLink() = default;

  // "rdma_en2" here and at the other end, for messages to people and for `Group::cables`.
  virtual const std::string& name() const = 0;

  // Why this link is out of use for good; empty while it works. It takes no more sends then, and nothing arrives, but
  // whatever was being sent is completed.
  virtual const std::string& fault() const {
    static const std::string kNone;
    return kNone;
  }

  // Posts a message that lies in registered memory and stays there unchanged until its completion. False: the link
  // takes no more at present; try again after a completion, unless there is a fault.
  virtual bool post_send(const std::byte* message, uint32_t bytes, uint64_t id) = 0;
  virtual void post_receive(std::byte* slot, uint32_t bytes, uint64_t id) = 0;

  // What has completed since; sends complete in order, receives too. Returns how many.
  virtual size_t poll(std::span<MessageCompletion> completions) = 0;
};

}  // namespace trunkline

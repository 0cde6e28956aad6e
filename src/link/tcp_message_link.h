// A TCP connection as a MessageLink: the spare link of a trunk, where the user has asked for one. Nothing is lost: a
// message that finds no posted receive stays in the connection until one is posted.
//
// On the wire: length of the message u32, its bytes.
#pragma once

#include <array>
#include <deque>

#include "link/message_link.h"
#include "link/ring.h"
#include "link/tcp_link.h"

namespace trunkline {

class TcpMessageLink final : public MessageLink {
 public:
  // `sends`: most that are on their way at a time.
  TcpMessageLink(TcpLink link, std::string name, size_t sends);

  const TcpLink& connection() const { return link_; }  // to wait for
  bool wants_write() const { return unwritten_ < sends_.end(); }

  const std::string& name() const override { return name_; }
  const std::string& fault() const override { return fault_; }
  bool post_send(const std::byte* message, uint32_t bytes, uint64_t id) override;
  void post_receive(std::byte* slot, uint32_t bytes, uint64_t id) override;
  size_t poll(std::span<MessageCompletion> completions) override;

 private:
  struct Send {
    const std::byte* message;
    uint32_t bytes;
    uint64_t id;
  };
  struct Receive {
    std::byte* slot;
    uint32_t bytes;
    uint64_t id;
  };

  void write();
  bool read();  // true: the oldest receive is whole
  void give_up(const std::string& why);

  TcpLink link_;
  std::string name_, fault_;
  Ring<Send> sends_;        // not yet told as completed
  uint64_t unwritten_ = 0;  // the first of them that the connection has not taken whole
  size_t written_ = 0;      // bytes of that one, its length counted
  std::deque<Receive> receives_;
  std::array<std::byte, 4> length_;
  size_t read_ = 0;  // bytes of the message that is coming, its length counted
};

}  // namespace trunkline

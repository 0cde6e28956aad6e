// FrameTrunk: one lane's traffic with one peer over all its cables: a FrameProtocol with the links that it drives.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "comm/cable_log.h"
#include "comm/send_slots.h"
#include "comm/stopwatch.h"
#include "comm/trunk_health.h"
#include "link/frame_protocol.h"
#include "link/verbs_trunks.h"
#include "trunkline/group.h"

namespace trunkline {

class FrameTrunk {
 public:
  // What the trunks of a lane share.
  struct Shared {
    size_t slot_bytes;
    std::byte* send_slots;  // slot i at i * slot_bytes
    SendSlots* slots;
    Stopwatch* const* stopwatch;  // of who is at work now
    CableLog* log;
  };
  // `credit_slots`: credit_reserve of them for each link, one after the other.
  FrameTrunk(std::string peer, std::vector<TrunkLink> links, const FrameProtocol::Options& options,
             const Shared& shared, std::byte* credit_slots, size_t credit_slot_bytes);

  ~FrameTrunk();
  FrameTrunk(const FrameTrunk&) = delete;
  FrameTrunk& operator=(const FrameTrunk&) = delete;

  FrameProtocol& protocol() { return protocol_; }
  const FrameProtocol& protocol() const { return protocol_; }

  // Takes what has come and completed. Whether there was anything.
  bool poll(FrameTime now);
  // Posts what is due. Whether there was anything.
  bool post(FrameTime now);

  // Why no link is left: the fault of the first; null while one works.
  const std::string* out_of_use() const;

  // When to call post() though nothing has happened.
  FrameTime look_at() const;

  const std::byte* payload(const Delivery& delivery) const {
    return receive_slot(delivery.link, delivery.slot) + kFrameHeaderBytes;
  }
  // A delivered frame's slot may be used again.
  void put_away(const Delivery& delivery, FrameTime now) { repost(delivery.link, delivery.slot, now); }

  // Any thread.
  void add_traffic(int peer, std::vector<CableTraffic>& cables) const;

 private:
  struct Message {
    const std::byte* at;
    uint32_t bytes;
  };
  struct Path {
    TrunkLink end;
    std::vector<uint32_t> free_credits;                      // slots
    std::deque<uint32_t> posted_credits;                     // in order
    std::deque<Message> to_post;                             // that the device had no room for yet, in order
    std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};  // of payload
    std::atomic<bool> suspended{false};                      // for add_traffic()
  };

  std::byte* receive_slot(size_t link, uint32_t slot) const {
    return paths_[link].end.receive_slots + slot * shared_.slot_bytes;
  }
  void repost(size_t link, uint32_t slot, FrameTime now);
  void arrived(size_t link, const MessageCompletion& completion, FrameTime now);
  Message prepare(const FrameProtocol::Post& post);
  bool flush(size_t link, FrameTime now);
  void sent(size_t link, FrameTime now);
  bool works_but(size_t link) const;  // another link
  void tell_health(FrameTime now);
  std::string cables_text() const;

  const std::string peer_;
  const Shared shared_;
  const size_t credit_slot_bytes_;
  const bool checksum_;
  std::byte* const credit_slots_;
  const size_t credit_reserve_;
  FrameProtocol protocol_;
  TrunkHealth health_;
  std::vector<Path> paths_;
};

}  // namespace trunkline

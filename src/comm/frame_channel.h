// Channel over trunks of RDMA cables. What is given is staged in slots, one copy; what comes is reduced or copied from
// the slot that it came in straight to its place.
//
// A lane's thread uses it from open() to close(). Between operations another thread may call serve(), so that a peer
// gets its answers while this rank computes.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "comm/channel.h"
#include "comm/copy.h"
#include "comm/frame_trunk.h"
#include "comm/keeper.h"
#include "comm/watch.h"

namespace trunkline {

class FrameChannel final : public Channel {
 public:
  struct Options {
    uint32_t generation = 0;  // of the job
    size_t frame_bytes = 0;
    bool checksum = true;
    size_t lane = 0;
    std::chrono::nanoseconds spin{0};
    bool spare_link = false;  // the last link of each trunk is one
  };
  static constexpr size_t kCreditReserve = 8;

  // The bytes of slots that a channel needs before its receives, with trunks of so many links.
  struct Layout {
    size_t slot_bytes;  // of each message
    size_t pools, slots_per_pool;
    size_t links;  // of all trunks
    size_t credit_bytes;
    size_t bytes() const { return pools * slots_per_pool * slot_bytes + links * kCreditReserve * credit_bytes; }
  };
  static Layout layout(size_t frame_bytes, const std::vector<size_t>& links_by_peer);

  FrameChannel(size_t rank, LaneTrunks lane, const Layout& layout, Watch& watch, std::shared_ptr<Keeper> keeper,
               std::shared_ptr<CableLog> log, const Options& options);
  ~FrameChannel() override { keeper_->remove(*this); }

  bool reaches(size_t rank) const override { return rank == rank_ || trunks_[rank] != nullptr; }
  size_t frame_bytes() const override { return options_.frame_bytes; }
  void open(const Operation& operation, const Team& team) override;
  void announce(size_t peer, Part part, size_t bytes) override;
  void send(std::span<const size_t> peers, Part part, ConstBytes bytes) override;
  std::byte* frame_for(std::span<const size_t> peers, Part part, size_t bytes) override;
  void receive(size_t peer, Part part, Bytes into) override;
  void stage(size_t peer, size_t bytes) override;
  std::span<const std::byte* const> collect(size_t offset, const std::byte* own) override;
  void await_sent(Part part, size_t bytes) override;
  void await_received(size_t peer, Part part, size_t bytes) override;
  void close() override;
  void drain(const Deadline& deadline) override;
  Stopwatch& stopwatch() override { return stopwatch_; }
  void add_traffic(std::vector<CableTraffic>& cables) const override;

  // Between operations: answers peers, repairs what was lost. Whether something is still to be done soon. Any thread;
  // does nothing while an operation is under way.
  bool serve();

 private:
  static constexpr size_t kParts = 2;

  // What is given to some peers: a run of the caller's bytes.
  struct Outgoing {
    std::vector<size_t> peers;
    Part part = Part::scatter;
    const std::byte* base = nullptr;
    size_t size = 0;
    size_t staged = 0;
  };
  struct Incoming {
    std::byte* base = nullptr;  // where it goes; null: it is collected
    size_t size = 0;
    FrameSet come;
  };
  struct Peer {                                             // of the operation, by place
    FrameTrunk* trunk = nullptr;                            // null: takes no part
    bool heard = false;                                     // has begun the operation
    std::array<uint64_t, kParts> gives{}, said{}, given{};  // in all; sent before the start; offered by now
    std::array<Incoming, kParts> in;
    std::vector<std::optional<Delivery>> held;  // frames to be collected, by number
  };

  void declare(std::span<const size_t> peers, Part part, size_t bytes);
  void start();
  bool expects_staged(const Peer& peer, size_t offset) const;
  void put_away_collected();
  template <typename Done>
  void move_until(Done done);
  // Credit messages move without anyone getting on: a peer's keeper answers while the peer is elsewhere.
  enum class Moved { nothing, credits, data };
  Moved move_once(FrameTime& time);
  void find_out_if_stopped(FrameTime time);
  void look_at_others(FrameTime time);
  bool deliver(Peer& peer, FrameTime time);
  bool stage_some();
  bool stage_frame(Outgoing& outgoing);
  bool can_offer(std::span<const size_t> peers, Part part) const;
  size_t pool_for(std::span<const size_t> peers, Part part) const;
  FrameHeader header_for(std::span<const size_t> peers, Part part, uint32_t length) const;
  void offer(std::span<const size_t> peers, uint32_t slot, const FrameHeader& header, std::optional<uint32_t> checksum);
  std::byte* slot_at(uint32_t slot) const { return send_slots_ + slot * layout_.slot_bytes; }
  std::vector<size_t> awaited() const;
  void pause(FrameTime idle);
  void still_waiting(Watch::Wait& wait, FrameTime waited, FrameTime time);
  std::span<Outgoing> outgoing() { return std::span(outgoing_).first(outgoing_count_); }
  [[noreturn]] void fail_with(size_t rank, const FrameFault& fault);
  static FrameTime now() { return Clock::now().time_since_epoch(); }

  const size_t rank_;
  const Layout layout_;
  const Options options_;
  Watch& watch_;
  const std::shared_ptr<Keeper> keeper_;
  const std::shared_ptr<CableLog> log_;
  Stopwatch stopwatch_;               // of the lane
  Stopwatch unwatched_;               // of whoever serves between operations: nobody asks for it
  Stopwatch* current_ = &stopwatch_;  // changes under busy_
  Slab slab_;
  std::byte* send_slots_ = nullptr;
  SendSlots slots_;
  size_t held_ = 0;                                  // places for staged frames of a peer: more than can be there
  std::vector<std::unique_ptr<FrameTrunk>> trunks_;  // by rank; null: no path

  std::atomic<bool> busy_{false};
  Operation operation_, peers_operation_;  // as this rank calls it, and the others
  const Team* team_ = nullptr;
  bool started_ = false;
  Stores stores_ = Stores::cached;
  std::vector<Peer> peers_;
  std::vector<Outgoing> outgoing_;
  size_t outgoing_count_ = 0;           // of this operation
  std::optional<uint32_t> frame_slot_;  // that frame_for() has handed out
  std::vector<const std::byte*> collected_;
  std::optional<size_t> collected_frame_;  // its number
  bool due_ = false;                       // something may have to be posted
  FrameTime looked_at_{0};
  FrameTime look_at_{0};  // when the protocols want to be looked after next
  uint64_t looks_ = 0;
};

}  // namespace trunkline

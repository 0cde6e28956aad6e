// Channel: what the algorithms see of the network: one lane's way to every other rank, for one operation after the
// other.
//
//   open(operation, team)                       tells every rank that takes part
//   announce, send, receive, stage              say what this rank gives and expects; they do not wait
//   collect, await_sent, await_received, close  wait, while bytes move in both directions with every rank at once
//
// What is expected must be said before the first wait of an operation. What passes between two ranks has up to two
// parts, each a contiguous run of bytes that arrives in order, cut into frames. Errors are those of Group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/operation.h"
#include "comm/stopwatch.h"

namespace trunkline {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

enum class Part : uint8_t {
  scatter = 0,  // contributions to a sum
  gather = 1,   // results, and whatever else is delivered as it is; goes first when both could be sent
};

// The ranks that take part in an operation, by their place among them. What is called a peer below is such a place.
struct Team {
  std::vector<size_t> ranks;  // [place]: the rank in the job
  size_t place = 0;           // of this rank
};

class Channel {
 public:
  virtual ~Channel() = default;

  // Whether there is a path to that rank of the job.
  virtual bool reaches(size_t rank) const = 0;
  virtual size_t frame_bytes() const = 0;

  // The team stays as it is until close(). Of a send or a receive, only this rank and the operation's root take part.
  virtual void open(const Operation& operation, const Team& team) = 0;

  // Before the first wait: so many bytes of a part will be sent to that peer in all. Needed where send() says only some
  // of it before the first wait.
  virtual void announce(size_t peer, Part part, size_t bytes) = 0;
  // Adds to a part, the same bytes for each of the peers. They stay the caller's, unchanged until await_sent() or
  // close(); those of later calls for the same part lie behind those of earlier ones.
  virtual void send(std::span<const size_t> peers, Part part, ConstBytes bytes) = 0;
  // Memory in which the next `bytes` of a part (a frame, or the part's rest) may be made for these peers so that send()
  // has no copy to make; it may wait. Null: there is no such memory, send() from elsewhere.
  virtual std::byte* frame_for(std::span<const size_t> peers, Part part, size_t bytes) = 0;
  // Expects a part, to be written straight to its place.
  virtual void receive(size_t peer, Part part, Bytes into) = 0;
  // Expects a scatter part of that many bytes, to be handed out by collect() frame by frame.
  virtual void stage(size_t peer, size_t bytes) = 0;

  // Waits for the staged frame at `offset` (a multiple of frame_bytes) of every peer that one is expected of. Returns
  // them by place, `own` in this rank's; valid until the next call. Frames are collected in order, each once.
  virtual std::span<const std::byte* const> collect(size_t offset, const std::byte* own) = 0;

  // Waits until the first `bytes` of a part are sent to every peer, so that their memory may change.
  virtual void await_sent(Part part, size_t bytes) = 0;

  // Waits until the first `bytes` of a part that receive() expects are in their place.
  virtual void await_received(size_t peer, Part part, size_t bytes) = 0;

  // Waits until all is sent and received, and every rank that takes part has announced the same operation.
  virtual void close() = 0;

  // After the last operation: waits a little until every peer has what it was given.
  virtual void drain(const Deadline&) {}

  virtual Stopwatch& stopwatch() = 0;
  // Adds what has crossed this lane's cables to the entries of the same cables. Any thread.
  virtual void add_traffic(std::vector<CableTraffic>& cables) const = 0;
};

// Adds to the entry of the same cable, or a new one.
inline void add_traffic(std::vector<CableTraffic>& cables, const CableTraffic& one) {
  const auto same = std::find_if(cables.begin(), cables.end(),
                                 [&](const CableTraffic& each) { return each.id == one.id && each.peer == one.peer; });
  if (same == cables.end()) {
    cables.push_back(one);
    return;
  }
  same->bytes_sent += one.bytes_sent;
  same->bytes_received += one.bytes_received;
  same->working = same->working || one.working;
}

}  // namespace trunkline

// Channel: what the algorithms see of the network: one lane's way to every other rank, for one operation after the
// other.
//
//   open(operation)                 tells every rank that takes part
//   send, receive, stage            say what this rank gives and expects; they do not wait
//   collect, await_sent, close      wait, while bytes move in both directions with every rank at once
//
// What is expected must be said before the first wait of an operation. What passes between two ranks has up to two
// parts, each a contiguous run of bytes that arrives in order, cut into frames. Errors are those of Group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "comm/operation.h"

namespace trunkline {

using Bytes = std::span<std::byte>;
using ConstBytes = std::span<const std::byte>;

enum class Part : uint8_t {
  scatter = 0,  // contributions to a sum
  gather = 1,   // results, and whatever else is delivered as it is; goes first when both could be sent
};

class Channel {
 public:
  virtual ~Channel() = default;

  virtual size_t rank() const = 0;
  virtual size_t size() const = 0;
  virtual size_t frame_bytes() const = 0;

  virtual void open(const Operation& operation) = 0;

  // Adds to a part. The bytes stay the caller's, unchanged until await_sent() or close(); those of later calls for the
  // same part lie behind those of earlier ones.
  virtual void send(size_t peer, Part part, ConstBytes bytes) = 0;
  // Expects a part, to be written straight to its place.
  virtual void receive(size_t peer, Part part, Bytes into) = 0;
  // Expects a scatter part of that many bytes, to be handed out by collect() frame by frame.
  virtual void stage(size_t peer, size_t bytes) = 0;

  // Waits for the staged frame at `offset` (a multiple of frame_bytes) of every rank. Returns them in rank order, `own`
  // in this rank's place; valid until the next call. Frames are collected in order, each once.
  virtual std::span<const std::byte* const> collect(size_t offset, const std::byte* own) = 0;

  // Waits until the first `bytes` of a part are sent to every rank, so that their memory may change.
  virtual void await_sent(Part part, size_t bytes) = 0;

  // Waits until all is sent and received, and every rank that takes part has announced the same operation.
  virtual void close() = 0;
};

}  // namespace trunkline

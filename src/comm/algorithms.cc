#include "comm/algorithms.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace trunkline {
namespace {

// The other ranks, beginning with the next one, so that not all send to the same first.
std::vector<size_t> peers_of(const Channel& channel) {
  std::vector<size_t> peers;
  for (size_t i = 1; i < channel.size(); ++i) peers.push_back((channel.rank() + i) % channel.size());
  return peers;
}

// Calls f(offset, bytes) for each frame of `size` bytes.
template <typename F>
void for_each_frame(const Channel& channel, size_t size, F f) {
  for (size_t offset = 0; offset < size; offset += channel.frame_bytes()) {
    f(offset, std::min(channel.frame_bytes(), size - offset));
  }
}

// out[offset, offset + bytes) = the sum, maximum or minimum of every rank's frame there.
void reduce_frame(Channel& channel, const Operation& operation, ConstBytes own, Bytes out, size_t offset,
                  size_t bytes) {
  const auto inputs = channel.collect(offset, own.data() + offset);
  reduce(operation.reduction, operation.dtype, inputs, out.data() + offset, bytes / size_of(operation.dtype));
}

void copy(ConstBytes from, Bytes to) {
  if (!from.empty() && from.data() != to.data()) std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

void mesh_all_reduce(Channel& channel, const Operation& operation, const ConstBlocks& in, const Blocks& out) {
  const size_t rank = channel.rank();
  const std::vector<size_t> peers = peers_of(channel);
  channel.open(operation);
  for (const size_t peer : peers) {
    channel.send(peer, Part::scatter, in[peer]);
    channel.stage(peer, in[rank].size());
    channel.receive(peer, Part::gather, out[peer]);
  }
  for_each_frame(channel, in[rank].size(), [&](size_t offset, size_t bytes) {
    reduce_frame(channel, operation, in[rank], out[rank], offset, bytes);
    for (const size_t peer : peers) channel.send(peer, Part::gather, out[rank].subspan(offset, bytes));
  });
  channel.close();
}

void broadcast_all_reduce(Channel& channel, const Operation& operation, ConstBytes in, Bytes out) {
  channel.open(operation);
  for (const size_t peer : peers_of(channel)) {
    channel.send(peer, Part::scatter, in);
    channel.stage(peer, in.size());
  }
  for_each_frame(channel, in.size(), [&](size_t offset, size_t bytes) {
    if (in.data() == out.data()) channel.await_sent(Part::scatter, offset + bytes);
    reduce_frame(channel, operation, in, out, offset, bytes);
  });
  channel.close();
}

void reduce_scatter(Channel& channel, const Operation& operation, const ConstBlocks& in, Bytes out) {
  const ConstBytes own = in[channel.rank()];
  channel.open(operation);
  for (const size_t peer : peers_of(channel)) {
    channel.send(peer, Part::scatter, in[peer]);
    channel.stage(peer, own.size());
  }
  for_each_frame(channel, own.size(),
                 [&](size_t offset, size_t bytes) { reduce_frame(channel, operation, own, out, offset, bytes); });
  channel.close();
}

void all_gather(Channel& channel, const Operation& operation, ConstBytes in, const Blocks& out) {
  channel.open(operation);
  for (const size_t peer : peers_of(channel)) {
    channel.send(peer, Part::gather, in);
    channel.receive(peer, Part::gather, out[peer]);
  }
  copy(in, out[channel.rank()]);
  channel.close();
}

void broadcast(Channel& channel, const Operation& operation, Bytes data) {
  const size_t root = static_cast<size_t>(operation.root);
  channel.open(operation);
  if (channel.rank() == root) {
    for (const size_t peer : peers_of(channel)) channel.send(peer, Part::gather, data);
  } else {
    channel.receive(root, Part::gather, data);
  }
  channel.close();
}

void send(Channel& channel, const Operation& operation, ConstBytes data) {
  channel.open(operation);
  channel.send(static_cast<size_t>(operation.root), Part::gather, data);
  channel.close();
}

void receive(Channel& channel, const Operation& operation, Bytes data) {
  channel.open(operation);
  channel.receive(static_cast<size_t>(operation.root), Part::gather, data);
  channel.close();
}

void barrier(Channel& channel, const Operation& operation) {
  channel.open(operation);
  channel.close();
}

}  // namespace trunkline

#include "comm/algorithms.h"

#include <algorithm>
#include <cstring>

#include "comm/reduce.h"

namespace trunkline {
namespace {

// The others, beginning with the next one, so that not all send to the same first.
std::vector<size_t> peers_of(const Team& team) {
  std::vector<size_t> peers;
  for (size_t i = 1; i < team.ranks.size(); ++i) peers.push_back((team.place + i) % team.ranks.size());
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
void reduce_frame(Channel& channel, const Operation& operation, ConstBytes own, Bytes out, size_t offset, size_t bytes,
                  std::byte* copy = nullptr) {
  const auto inputs = channel.collect(offset, own.data() + offset);
  const auto span = channel.stopwatch().in(Activity::reduce);
  reduce(operation.reduction, operation.dtype, inputs, out.data() + offset, bytes / size_of(operation.dtype), copy,
         stores_for(operation.bytes()));
}

void copy(Channel& channel, ConstBytes from, Bytes to) {
  if (from.empty() || from.data() == to.data()) return;
  const auto span = channel.stopwatch().in(Activity::copy);
  std::memcpy(to.data(), from.data(), from.size());
}

}  // namespace

void mesh_all_reduce(Channel& channel, const Operation& operation, const Team& team, const ConstBlocks& in,
                     const Blocks& out) {
  const ConstBytes own = in[team.place];
  const Bytes sum = out[team.place];
  const std::vector<size_t> peers = peers_of(team);
  channel.open(operation, team);
  for (const size_t peer : peers) {
    channel.announce(peer, Part::gather, sum.size());
    channel.send({&peer, 1}, Part::scatter, in[peer]);
    channel.stage(peer, own.size());
    channel.receive(peer, Part::gather, out[peer]);
  }
  for_each_frame(channel, own.size(), [&](size_t offset, size_t bytes) {
    std::byte* const frame = channel.frame_for(peers, Part::gather, bytes);
    reduce_frame(channel, operation, own, sum, offset, bytes, frame);
    channel.send(peers, Part::gather, {frame != nullptr ? frame : sum.data() + offset, bytes});
  });
  channel.close();
}

void broadcast_all_reduce(Channel& channel, const Operation& operation, const Team& team, ConstBytes in, Bytes out) {
  const std::vector<size_t> peers = peers_of(team);
  channel.open(operation, team);
  channel.send(peers, Part::scatter, in);
  for (const size_t peer : peers) channel.stage(peer, in.size());
  for_each_frame(channel, in.size(), [&](size_t offset, size_t bytes) {
    if (in.data() == out.data()) channel.await_sent(Part::scatter, offset + bytes);
    reduce_frame(channel, operation, in, out, offset, bytes);
  });
  channel.close();
}

void reduce_scatter(Channel& channel, const Operation& operation, const Team& team, const ConstBlocks& in, Bytes out) {
  const ConstBytes own = in[team.place];
  channel.open(operation, team);
  for (const size_t peer : peers_of(team)) {
    channel.send({&peer, 1}, Part::scatter, in[peer]);
    channel.stage(peer, own.size());
  }
  for_each_frame(channel, own.size(),
                 [&](size_t offset, size_t bytes) { reduce_frame(channel, operation, own, out, offset, bytes); });
  channel.close();
}

void all_gather(Channel& channel, const Operation& operation, const Team& team, ConstBytes in, const Blocks& out) {
  const std::vector<size_t> peers = peers_of(team);
  channel.open(operation, team);
  channel.send(peers, Part::gather, in);
  for (const size_t peer : peers) channel.receive(peer, Part::gather, out[peer]);
  copy(channel, in, out[team.place]);
  channel.close();
}

void broadcast(Channel& channel, const Operation& operation, const Team& team, Bytes data) {
  const size_t root = static_cast<size_t>(operation.root);
  channel.open(operation, team);
  if (team.place == root) {
    channel.send(peers_of(team), Part::gather, data);
  } else {
    channel.receive(root, Part::gather, data);
  }
  channel.close();
}

void send(Channel& channel, const Operation& operation, const Team& team, ConstBytes data) {
  const size_t to = static_cast<size_t>(operation.root);
  channel.open(operation, team);
  channel.send({&to, 1}, Part::gather, data);
  channel.close();
}

void receive(Channel& channel, const Operation& operation, const Team& team, Bytes data) {
  channel.open(operation, team);
  channel.receive(static_cast<size_t>(operation.root), Part::gather, data);
  channel.close();
}

void barrier(Channel& channel, const Operation& operation, const Team& team) {
  channel.open(operation, team);
  channel.close();
}

}  // namespace trunkline

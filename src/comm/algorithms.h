// The collective algorithms, each as one lane runs it on its stripe of the message.
//
// A block is the part of a message that belongs to one rank: in an all-reduce by mesh, the segment that it sums; in an
// all-gather or a scatter, what it contributes or gets. Blocks are given by place in the team.
#pragma once

#include <vector>

#include "comm/channel.h"

namespace trunkline {

using Blocks = std::vector<Bytes>;
using ConstBlocks = std::vector<ConstBytes>;

// The operation's own element type and reduction decide how sums are made. `in` may be `out`.

// Reduce-scatter, then all-gather: every rank sums its block and returns it.
void mesh_all_reduce(Channel& channel, const Operation& operation, const Team& team, const ConstBlocks& in,
                     const Blocks& out);

// Everyone sends all to everyone; each rank sums all of it.
void broadcast_all_reduce(Channel& channel, const Operation& operation, const Team& team, ConstBytes in, Bytes out);

// `out` is this rank's block of the sum; it may be in[place].
void reduce_scatter(Channel& channel, const Operation& operation, const Team& team, const ConstBlocks& in, Bytes out);

// `in` may be out[place].
void all_gather(Channel& channel, const Operation& operation, const Team& team, ConstBytes in, const Blocks& out);

void broadcast(Channel& channel, const Operation& operation, const Team& team, Bytes data);
void send(Channel& channel, const Operation& operation, const Team& team, ConstBytes data);
void receive(Channel& channel, const Operation& operation, const Team& team, Bytes data);
void barrier(Channel& channel, const Operation& operation, const Team& team);

}  // namespace trunkline

// The trunks of a job over RDMA devices: for every lane, peer and cable a queue pair that is connected, has its
// receives posted, and is known to be the same cable at both ends.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cluster/cables.h"
#include "link/message_link.h"
#include "link/slab.h"

namespace trunkline {

struct TrunkOptions {
  int rank = 0;
  DeviceMatrix matrix;     // [a][b]: devices of rank a that have a cable to rank b; the same on every rank
  size_t lanes = 1;        // queue pairs on each device
  int cables = 0;          // most used to one peer; 0: all
  size_t slot_bytes = 0;   // of a receive
  size_t receives = 0;     // wanted on each link; fewer if the device accepts no more
  size_t sends = 0;        // the same for sends on their way
  size_t extra_bytes = 0;  // of each lane's slab, for the caller
  std::chrono::milliseconds timeout{60'000};
  std::string library;  // the RDMA library; empty: the system's
  // Given the reason, a second before the process ends because a device hangs in a call of a lane, in the course of
  // the job. From a thread of its own, for as long as there is a link.
  std::function<void(const std::string&)> on_hang;
};

// One link of a trunk, as one lane has it.
struct TrunkLink {
  std::unique_ptr<MessageLink> link;
  std::byte* receive_slots = nullptr;                 // slot i at i * slot_bytes; all are posted, with id i
  size_t receives = 0, peer_receives = 0, sends = 0;  // that this side posted, that the peer did, that the device takes
};

struct LaneTrunks {
  Slab slab;                                   // registered with every device; begins with the caller's extra_bytes
  std::vector<std::vector<TrunkLink>> trunks;  // [peer][cable], in an order that both sides share
};

// What a rank says to each other in a round of the set-up, and hears from each: any bytes, by rank. Its own entry goes
// nowhere, and comes back as anything. Throws what has ended the job.
using Exchange = std::function<std::vector<std::string>(const std::vector<std::string>& to_each_peer)>;

// Every rank calls it at once. Throws Error(input) for a device that is not there or a matrix that cannot be,
// Error(system) for one that cannot be used (port down, no GID, hangs), Error(mismatch) for cables that are not the
// same at both ends and cannot be put right; messages name rank, device and what to do.
std::vector<LaneTrunks> connect_trunks(const TrunkOptions& options, const Exchange& exchange);

}  // namespace trunkline

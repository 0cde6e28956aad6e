// Proof that each cable is the same one at both ends: with one queue pair a device, for a moment, each device says who
// it is over its cable until it is answered. Where the lists of two ranks are crossed or shuffled, devices are tried
// with others until all have found each other.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "link/verbs_device.h"
#include "link/verbs_ports.h"
#include "link/verbs_trunks.h"

namespace trunkline {

// What a device has been seen to accept.
struct DeviceDepth {
  size_t receives = 0, sends = 0;
};

struct ProvenCables {
  Cabling cabling;                  // of all ranks' devices
  std::vector<DeviceDepth> depths;  // of this rank's
};

// Every rank calls it at once. `devices`: this rank's, in the order of its ports. Throws Error(mismatch), the same on
// every rank, for cables that lead to another rank than the matrix says, or nowhere.
ProvenCables prove_cables(const TrunkOptions& options, const Ports& ports,
                          const std::vector<std::shared_ptr<VerbsDevice>>& devices, const Exchange& exchange);

}  // namespace trunkline

// The ends of all cables of a job, as every rank knows them: from the device matrix, which is the same everywhere, and
// from what each rank has said of its devices.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cluster/cables.h"
#include "link/verbs_library.h"

namespace trunkline {

// A device: the `index`-th of a rank, counted through its row of the matrix.
struct Port {
  size_t rank = 0, index = 0;
  auto operator<=>(const Port&) const = default;
};

struct PortInfo {
  std::string name;
  size_t peer = 0;  // to which the matrix says that its cable leads
  ibv_gid gid{};
};

class Ports {
 public:
  // Throws Error(input) for a matrix that cannot be: see check_device_matrix.
  explicit Ports(const DeviceMatrix& matrix);

  size_t ranks() const { return ports_.size(); }
  std::vector<PortInfo>& of(size_t rank) { return ports_[rank]; }
  const std::vector<PortInfo>& of(size_t rank) const { return ports_[rank]; }
  const PortInfo& operator[](Port port) const { return ports_[port.rank][port.index]; }

  // The cell of the matrix, in its order.
  std::vector<Port> between(size_t rank, size_t peer) const;
  std::vector<Port> all() const;
  std::string text(Port port) const;  // "rdma_en2 of rank 0"

 private:
  std::vector<std::vector<PortInfo>> ports_;  // [rank][index]
};

// Which device is at the other end of each one's cable.
using Cabling = std::map<Port, Port>;

}  // namespace trunkline

#include "link/verbs_ports.h"

#include <fmt/format.h>

namespace trunkline {

Ports::Ports(const DeviceMatrix& matrix) : ports_(matrix.size()) {
  check_device_matrix(matrix, "device matrix");
  for (size_t rank = 0; rank < matrix.size(); ++rank) {
    for (size_t peer = 0; peer < matrix.size(); ++peer) {
      for (const std::string& name : matrix[rank][peer]) ports_[rank].push_back({name, peer, {}});
    }
  }
}

std::vector<Port> Ports::between(size_t rank, size_t peer) const {
  std::vector<Port> result;
  for (size_t index = 0; index < ports_[rank].size(); ++index) {
    if (ports_[rank][index].peer == peer) result.push_back({rank, index});
  }
  return result;
}

std::vector<Port> Ports::all() const {
  std::vector<Port> result;
  for (size_t rank = 0; rank < ports_.size(); ++rank) {
    for (size_t index = 0; index < ports_[rank].size(); ++index) result.push_back({rank, index});
  }
  return result;
}

std::string Ports::text(Port port) const { return fmt::format("{} of rank {}", (*this)[port].name, port.rank); }

}  // namespace trunkline

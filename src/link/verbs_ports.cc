#include "link/verbs_ports.h"

#include <algorithm>

#include "base/fail.h"

namespace trunkline {

Ports::Ports(const DeviceMatrix& matrix) : ports_(matrix.size()) {
  for (size_t rank = 0; rank < matrix.size(); ++rank) {
    if (matrix[rank].size() != matrix.size()) {
      fail(ErrorKind::input,
           "device matrix: row {} has {} cells, and there are {} rows: it has a cell for each pair of "
           "ranks",
           rank, matrix[rank].size(), matrix.size());
    }
  }
  for (size_t rank = 0; rank < matrix.size(); ++rank) {
    for (size_t peer = 0; peer < matrix.size(); ++peer) {
      const auto& cell = matrix[rank][peer];
      if (peer == rank && !cell.empty()) {
        fail(ErrorKind::input, "device matrix: row {}, column {}: {}: a rank has no cable to itself", rank, peer,
             cell[0]);
      }
      if (cell.size() != matrix[peer][rank].size()) {
        fail(ErrorKind::input,
             "device matrix: rank {} lists {} devices with a cable to rank {}, which lists {} for the way back: a "
             "cable has "
             "two ends",
             rank, cell.size(), peer, matrix[peer][rank].size());
      }
      for (const std::string& name : cell) {
        auto& own = ports_[rank];
        if (std::any_of(own.begin(), own.end(), [&](const PortInfo& each) { return each.name == name; })) {
          fail(ErrorKind::input, "device matrix: row {} names {} twice: a device has one cable", rank, name);
        }
        own.push_back({name, peer, {}});
      }
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

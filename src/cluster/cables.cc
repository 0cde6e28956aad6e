#include "cluster/cables.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "base/fail.h"

namespace trunkline {
namespace {

// Rank by rank; devices that only cables name come after those that the file lists.
void complete_devices(Wiring& wiring) {
  std::set<std::pair<int, std::string>> known;
  for (const Device& device : wiring.devices) known.emplace(device.rank, device.name);
  for (const Cable& cable : wiring.cables) {
    for (const CableEnd& end : cable.ends) {
      if (known.emplace(end.rank, end.device).second) {
        Device device;
        device.rank = end.rank;
        device.name = end.device;
        wiring.devices.push_back(std::move(device));
      }
    }
  }
  std::stable_sort(wiring.devices.begin(), wiring.devices.end(),
                   [](const Device& a, const Device& b) { return a.rank < b.rank; });
}

}  // namespace

void complete_wiring(Wiring& wiring, const std::string& where) {
  complete_devices(wiring);
  std::set<std::pair<int, std::string>> ends;
  for (size_t i = 0; i < wiring.cables.size(); ++i) {
    const Cable& cable = wiring.cables[i];
    for (const CableEnd& end : cable.ends) {
      if (end.rank < 0 || end.rank >= wiring.ranks) {
        fail(ErrorKind::input, "{}: cables[{}].ends: there is no rank {}; the job has {}", where, i, end.rank,
             wiring.ranks);
      }
      if (!ends.emplace(end.rank, end.device).second) {
        fail(ErrorKind::input, "{}: cables[{}].ends: device {} of rank {} has a cable already", where, i, end.device,
             end.rank);
      }
    }
    if (cable.ends[0].rank == cable.ends[1].rank) {
      fail(ErrorKind::input, "{}: cables[{}].ends: both are rank {}'s", where, i, cable.ends[0].rank);
    }
    double free_from = 0;
    for (const Outage& outage : cable.outages) {
      if (outage.cut_ms < free_from || outage.mend_ms <= outage.cut_ms) {
        fail(ErrorKind::input,
             "{}: cables[{}]: cut at {} ms: cuts come in order, each mended after it and before the next", where, i,
             outage.cut_ms);
      }
      free_from = outage.mend_ms;
    }
  }
  std::set<std::pair<int, std::string>> names;
  for (const Device& device : wiring.devices) {
    if (device.rank < 0 || device.rank >= wiring.ranks) {
      fail(ErrorKind::input, "{}: device {}: there is no rank {}; the job has {}", where, device.name, device.rank,
           wiring.ranks);
    }
    if (!names.emplace(device.rank, device.name).second) {
      fail(ErrorKind::input, "{}: device {} of rank {} is listed twice", where, device.name, device.rank);
    }
  }
}

DeviceMatrix device_matrix(const Wiring& wiring) {
  DeviceMatrix matrix(wiring.ranks, std::vector<std::vector<std::string>>(wiring.ranks));
  for (const Cable& cable : wiring.cables) {
    const auto& [a, b] = cable.ends;
    matrix[a.rank][b.rank].push_back(a.device);
    matrix[b.rank][a.rank].push_back(b.device);
  }
  return matrix;
}

}  // namespace trunkline

#include "base/cores.h"

#include <unistd.h>

#ifdef __linux__
#include <sched.h>
#endif

#include <algorithm>
#include <filesystem>
#include <sstream>

#include "base/file.h"

namespace trunkline {
namespace {

int affinity_cores() {
#ifdef __linux__
  cpu_set_t mask;
  CPU_ZERO(&mask);
  if (::sched_getaffinity(0, sizeof mask, &mask) == 0) return CPU_COUNT(&mask);
#endif
  return static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));  // also beyond 1024 cores, where a cpu_set_t is too small
}

#ifdef __linux__
// The smallest quota of this process's group and of those that it lies in.
int smallest_quota() {
  namespace fs = std::filesystem;
  const fs::path root = "/sys/fs/cgroup";
  if (!fs::exists(root / "cgroup.controllers")) return 0;  // not version 2
  std::istringstream groups(read_file("/proc/self/cgroup"));
  int smallest = 0;
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::/")) continue;
    // "0::/a/b": the folders a/b, a and the root.
    for (fs::path folder = root / line.substr(4);; folder = folder.parent_path()) {
      if (fs::exists(folder / "cpu.max")) {
        const int quota = quota_cores(read_file(folder / "cpu.max"));
        if (quota > 0 && (smallest == 0 || quota < smallest)) smallest = quota;
      }
      if (folder == root || !folder.has_relative_path()) break;
    }
  }
  return smallest;
}
#else
int smallest_quota() { return 0; }
#endif

}  // namespace

int quota_cores(std::string_view cpu_max) {
  std::istringstream text{std::string(cpu_max)};
  double quota = 0, period = 0;
  if (!(text >> quota >> period) || quota <= 0 || period <= 0) return 0;
  return static_cast<int>((quota + period - 1) / period);
}

int usable_cores() {
  const int cores = std::max(1, affinity_cores());
  const int quota = smallest_quota();
  return quota > 0 ? std::min(cores, quota) : cores;
}

}  // namespace trunkline

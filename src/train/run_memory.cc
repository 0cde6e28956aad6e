#include "train/run_memory.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "model/backend.h"
#include "plan/least_limit.h"

namespace trunkline {
namespace {

// Of the device's memory, what steps are planned for: the rest is others', and what allocators lose.
constexpr double kUsableShare = 0.8;

}  // namespace

void require_memory(int64_t least, int64_t limit) {
  if (least <= limit) return;
  // Rounded up, so that what is named works.
  const double gib = std::ceil(1e4 * static_cast<double>(least) / static_cast<double>(int64_t{1} << 30)) / 1e4;
  fail(ErrorKind::input,
       "memory_limit: a step takes at least {}, and the limit for this rank is {}: give --memory-limit {:.4f} (GiB) or "
       "more if there is so much memory, or shorter or fewer rows",
       memory_text(least), memory_text(limit), gib);
}

int64_t memory_for_steps(const Group& group, double asked) {
  if (asked > 0.0) return static_cast<int64_t>(asked * (int64_t{1} << 30));
  int ranks_here = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.host_of(rank) == group.host_of(group.rank())) ++ranks_here;
  }
  return static_cast<int64_t>(kUsableShare * static_cast<double>(device_memory()) / ranks_here);
}

std::vector<int64_t> limits_for_sizes(Group& group, int64_t limit, const std::vector<int64_t>& before,
                                      std::vector<std::string>& notes) {
  std::vector<int64_t> limits(static_cast<size_t>(group.size()));
  group.all_gather(&limit, limits.data(), 1, Dtype::i64);
  if (before.size() != limits.size()) return limits;
  for (size_t rank = 0; rank < limits.size(); ++rank) {
    if (limits[rank] < before[rank]) {
      notes.push_back(fmt::format(
          "the memory limit of rank {} is {}, and was {}: sizes of blocks follow from it, so the weights may differ in "
          "their last bits from those of a run under that",
          rank, memory_text(limits[rank]), memory_text(before[rank])));
    }
    limits[rank] = std::min(limits[rank], before[rank]);
  }
  return limits;
}

}  // namespace trunkline

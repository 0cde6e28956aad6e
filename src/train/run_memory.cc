#include "train/run_memory.h"

#include "model/backend.h"

namespace trunkline {
namespace {

// Of the device's memory, what steps are planned for: the rest is others', and what allocators lose.
constexpr double kUsableShare = 0.8;

}  // namespace

int64_t memory_for_steps(const Group& group, double asked) {
  if (asked > 0.0) return static_cast<int64_t>(asked * (int64_t{1} << 30));
  int ranks_here = 0;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (group.host_of(rank) == group.host_of(group.rank())) ++ranks_here;
  }
  return static_cast<int64_t>(kUsableShare * static_cast<double>(device_memory()) / ranks_here);
}

}  // namespace trunkline

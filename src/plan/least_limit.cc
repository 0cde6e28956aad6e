#include "plan/least_limit.h"

#include <fmt/format.h>

#include <algorithm>

namespace trunkline {

int64_t least_limit(const ModelShape& shape, const StepSize& size, const StepBlocks& asked, Recompute recompute) {
  // What a step takes in a limit that is too small grows with the limit, up to what blocks may be at most.
  for (int64_t limit = 1;;) {
    const int64_t takes = step_memory(shape, size, choose_blocks(shape, size, limit, asked, recompute)).total();
    if (takes <= limit) return limit;
    limit = std::max(limit + 1, takes);
  }
}

std::string memory_text(int64_t bytes) {
  const double mib = static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 20);
  return mib < 1024.0 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024.0);
}

}  // namespace trunkline

#include "plan/ring.h"

#include <algorithm>

namespace trunkline {
namespace {

// Goes on from the end of `order`, trying the ranks that follow in number first.
bool complete(const Paths& paths, std::vector<size_t>& order, std::vector<bool>& taken, size_t& steps) {
  const size_t ranks = paths.size();
  const size_t last = order.back();
  if (order.size() == ranks) return paths[last][order.front()] > 0;
  for (size_t i = 1; i < ranks; ++i) {
    const size_t next = (last + i) % ranks;
    if (taken[next] || paths[last][next] == 0) continue;
    if (steps == 0) return false;
    --steps;
    order.push_back(next);
    taken[next] = true;
    if (complete(paths, order, taken, steps)) return true;
    taken[next] = false;
    order.pop_back();
  }
  return false;
}

}  // namespace

Paths all_paths(size_t ranks) {
  Paths paths(ranks, std::vector<size_t>(ranks, 1));
  for (size_t rank = 0; rank < ranks; ++rank) paths[rank][rank] = 0;
  return paths;
}

Paths paths_among(const Paths& paths, const std::vector<size_t>& ranks) {
  Paths result(ranks.size(), std::vector<size_t>(ranks.size()));
  for (size_t a = 0; a < ranks.size(); ++a) {
    for (size_t b = 0; b < ranks.size(); ++b) result[a][b] = a == b ? 0 : paths[ranks[a]][ranks[b]];
  }
  return result;
}

std::vector<std::pair<size_t, size_t>> missing_pairs(const Paths& paths) {
  std::vector<std::pair<size_t, size_t>> missing;
  for (size_t a = 0; a < paths.size(); ++a) {
    for (size_t b = a + 1; b < paths.size(); ++b) {
      if (paths[a][b] == 0) missing.emplace_back(a, b);
    }
  }
  return missing;
}

size_t fewest_cables(const Paths& paths) {
  size_t fewest = 0;
  for (const auto& row : paths) {
    for (const size_t cables : row) {
      if (cables > 0) fewest = fewest == 0 ? cables : std::min(fewest, cables);
    }
  }
  return std::max<size_t>(fewest, 1);
}

std::vector<size_t> ring_order(const Paths& paths) {
  if (paths.empty()) return {};
  std::vector<size_t> order{0};
  if (paths.size() == 1) return order;
  std::vector<bool> taken(paths.size(), false);
  taken[0] = true;
  size_t steps = kRingSteps;
  if (!complete(paths, order, taken, steps)) order.clear();
  return order;
}

}  // namespace trunkline

// Rings: how ranks stand in a circle when not every pair of them has a cable.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace trunkline {

// [a][b]: how many cables join ranks a and b; the same both ways.
using Paths = std::vector<std::vector<size_t>>;

// One path between every two of so many ranks.
Paths all_paths(size_t ranks);
// The paths between some of the ranks, by their place among them.
Paths paths_among(const Paths& paths, const std::vector<size_t>& ranks);

// The pairs of ranks that no path joins.
std::vector<std::pair<size_t, size_t>> missing_pairs(const Paths& paths);
// The fewest cables of a pair that has any.
size_t fewest_cables(const Paths& paths);

// All ranks in an order in which each has a path to the next, and the last to the first: the natural order, if that is
// one. Empty: there is none, or none was found in kRingSteps steps of the search. The same on every rank.
inline constexpr size_t kRingSteps = 1'000'000;
std::vector<size_t> ring_order(const Paths& paths);

}  // namespace trunkline

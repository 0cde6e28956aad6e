// Work that each rank does by itself for a while: computing, reading data, writing a snapshot.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trunkline/group.h"

namespace trunkline {

// Runs `work` on this thread, on every rank of the group at once, and returns when all have done it. Meanwhile a second
// thread exchanges a sign of life between the ranks, so that a slow rank is waited for as long as it takes, one that
// dies is noticed, and when one fails all of them throw: it its own exception, the others an Error of kind peer that
// names the rank and repeats its message.
void together(Group& group, const std::function<void()>& work);

// Each rank's text, in rank order.
std::vector<std::string> gather_text(Group& group, const std::string& mine);

// Each rank's values (the same number on all), in rank order; the bits travel unchanged.
std::vector<std::vector<double>> gather_values(Group& group, const std::vector<double>& mine);

}  // namespace trunkline

// The arithmetic of a benchmark of collectives: sizes, what a size means for each collective, times and bandwidths. As
// nccl-tests has it (its PERFORMANCE.md), so that figures can be laid side by side.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trunkline/dtype.h"

namespace trunkline {

enum class Collective { sendrecv, allreduce, allgather, reducescatter, broadcast };

inline constexpr Collective kAllCollectives[] = {Collective::sendrecv, Collective::allreduce, Collective::allgather,
                                                 Collective::reducescatter, Collective::broadcast};

std::string_view name_of(Collective collective);

// "1", "32K", "1G": bytes, with the units K, M and G of 2^10, 2^20 and 2^30. None for anything else.
std::optional<size_t> size_from(std::string_view text);

// min, min * factor, ... up to max; after a size of 0 comes 1.
std::vector<size_t> sizes_between(size_t min, size_t max, size_t factor);
// min, min + step, ... up to max.
std::vector<size_t> sizes_by_step(size_t min, size_t max, size_t step);

// What a collective moves when a message of so many bytes is asked for: whole elements, and for all-gather and
// reduce-scatter the same number on every rank.
struct Message {
  size_t count = 0;  // elements, as Group's calls take them: of one rank, for all-gather and reduce-scatter
  size_t bytes = 0;  // of the whole message: of all ranks, for those two
};
Message message_of(Collective collective, size_t bytes, Dtype dtype, int ranks);

struct Times {
  double mean = 0, p50 = 0, p99 = 0;
};
// Of at least one sample. A percentile is the smallest sample that so many of a hundred do not exceed.
Times times_of(std::span<const double> samples);

// Bytes a second for a message that took so long; 0 if it took none.
double algorithm_bandwidth(size_t bytes, double seconds);
// Algorithm bandwidth times this is bus bandwidth: what every link carries when the collective is done as well as it
// can be, so that it can be held against a link's speed whatever the number of ranks.
double bus_factor(Collective collective, int ranks);

}  // namespace trunkline

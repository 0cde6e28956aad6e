// What a benchmark tells: a table as users of nccl-tests know it, and lines of JSON. docs/benchmarks.md explains both.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/bench_run.h"

namespace trunkline {

// "2 ranks, 1 host, emulated RDMA cables".
std::string describe_place(const Group& group, bool emulated, const std::vector<CableTraffic>& cables);

// Lines that begin with #, the last of them the columns' names; `cables`: those whose bytes get a column each.
std::string bench_header(const Group& group, const BenchOptions& options, const Config& config, bool emulated,
                         const std::vector<CableTraffic>& cables);
std::string bench_row(const BenchOptions& options, const BenchResult& result);
// `bus_bytes_s`: bus bandwidth, the mean of all sizes.
std::string bench_footer(const BenchOptions& options, uint64_t wrong, double bus_bytes_s);

// One object a size.
nlohmann::ordered_json bench_json(const Group& group, const BenchOptions& options, const Config& config, bool emulated,
                                  const BenchResult& result);

// Bytes a second in units of 10^9 bits a second.
inline double gbps(double bytes_s) { return bytes_s * 8e-9; }

std::string_view name_of(Workers workers);

}  // namespace trunkline

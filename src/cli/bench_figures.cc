#include "cli/bench_figures.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

namespace trunkline {

std::string_view name_of(Collective collective) {
  switch (collective) {
    case Collective::sendrecv: return "sendrecv";
    case Collective::allreduce: return "allreduce";
    case Collective::allgather: return "allgather";
    case Collective::reducescatter: return "reducescatter";
    case Collective::broadcast: return "broadcast";
  }
  return "";
}

std::optional<size_t> size_from(std::string_view text) {
  size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (unit.empty()) return number;
  if (unit.size() != 1) return std::nullopt;
  unsigned shift = 0;
  switch (unit[0]) {
    case 'k':
    case 'K': shift = 10; break;
    case 'm':
    case 'M': shift = 20; break;
    case 'g':
    case 'G': shift = 30; break;
    default: return std::nullopt;
  }
  if (number > std::numeric_limits<size_t>::max() >> shift) return std::nullopt;
  return number << shift;
}

std::vector<size_t> sizes_between(size_t min, size_t max, size_t factor) {
  std::vector<size_t> sizes;
  for (size_t size = min; size <= max;) {
    sizes.push_back(size);
    if (size > max / factor) break;
    size = std::max<size_t>(size * factor, 1);
  }
  return sizes;
}

std::vector<size_t> sizes_by_step(size_t min, size_t max, size_t step) {
  std::vector<size_t> sizes;
  for (size_t size = min; size <= max; size += step) {
    sizes.push_back(size);
    if (step > max - size) break;
  }
  return sizes;
}

Message message_of(Collective collective, size_t bytes, Dtype dtype, int ranks) {
  const bool in_parts = collective == Collective::allgather || collective == Collective::reducescatter;
  const size_t parts = in_parts ? static_cast<size_t>(ranks) : 1;
  const size_t count = bytes / size_of(dtype) / parts;
  return {count, count * parts * size_of(dtype)};
}

Times times_of(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const auto percentile = [&](double share) {
    const auto rank = static_cast<size_t>(std::ceil(share * static_cast<double>(sorted.size())));
    return sorted[std::max<size_t>(rank, 1) - 1];
  };
  const double sum = std::accumulate(sorted.begin(), sorted.end(), 0.0);
  return {sum / static_cast<double>(sorted.size()), percentile(0.50), percentile(0.99)};
}

double algorithm_bandwidth(size_t bytes, double seconds) {
  return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
}

double bus_factor(Collective collective, int ranks) {
  const double n = ranks;
  switch (collective) {
    case Collective::allreduce: return 2 * (n - 1) / n;
    case Collective::allgather:
    case Collective::reducescatter: return (n - 1) / n;
    case Collective::sendrecv:
    case Collective::broadcast: return 1;
  }
  return 1;
}

}  // namespace trunkline

// Sums go over every cable of a rank's trunks: trunkline launch -n 3 --cables 2 -- build/release/example_two_trunks
#include <cinttypes>
#include <cstdio>
#include <exception>
#include <vector>

#include "trunkline/group.h"

int main() {
  try {
    const auto group = trunkline::Group::connect(trunkline::Config::from_env());
    std::vector<float> values(4'000'000, 1.0f);
    auto sum = group->all_sum_async(values.data(), values.data(), values.size(), trunkline::Dtype::f32);
    // ... and here something else, while the sum goes on.
    sum.wait();
    if (values.back() != static_cast<float>(group->size())) {
      std::fprintf(stderr, "rank %d: %g, not %d\n", group->rank(), values.back(), group->size());
      return 1;
    }
    for (const trunkline::CableTraffic& cable : group->cables()) {
      std::printf("rank %d: %s to rank %d: %" PRIu64 " bytes sent, %" PRIu64 " received\n", group->rank(),
                  cable.id.c_str(), cable.peer, cable.bytes_sent, cable.bytes_received);
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

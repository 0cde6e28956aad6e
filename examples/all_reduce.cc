// Every rank gets the sum of all: trunkline launch -n 4 -- build/release/example_all_reduce
#include <cstdio>
#include <exception>
#include <vector>

#include "trunkline/group.h"

int main() {
  try {
    const auto group = trunkline::Group::connect(trunkline::Config::from_env());
    std::vector<float> values(1'000'000, static_cast<float>(group->rank() + 1));
    group->all_sum(values.data(), values.data(), values.size(), trunkline::Dtype::f32);  // in place

    const auto expected = static_cast<float>(group->size() * (group->size() + 1) / 2);
    for (const float value : values) {
      if (value == expected) continue;
      std::fprintf(stderr, "rank %d: %g, not %g\n", group->rank(), value, expected);
      return 1;
    }
    std::printf("rank %d: 1 + ... + %d = %g, a million times\n", group->rank(), group->size(), expected);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

// The ranks of a job meet: trunkline launch -n 4 -- build/release/example_barrier
#include <cstdio>
#include <exception>

#include "trunkline/group.h"

int main() {
  try {
    const auto group = trunkline::Group::connect(trunkline::Config::from_env());
    group->barrier();  // nobody passes before the last has come
    std::printf("rank %d of %d on %s has passed\n", group->rank(), group->size(),
                group->host_of(group->rank()).c_str());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

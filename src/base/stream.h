// Whole messages through a pipe, with a deadline.
#pragma once

#include <cstddef>
#include <span>

#include "base/clock.h"

namespace trunkline {

enum class StreamEnd { done, closed, late };

// Writes all bytes; `fd` must be non-blocking. `closed`: nobody reads any more (no SIGPIPE is raised).
[[nodiscard]] StreamEnd write_exactly(int fd, std::span<const std::byte> bytes, Deadline deadline);

// Fills all of `bytes`. `closed`: the other end was closed first.
[[nodiscard]] StreamEnd read_exactly(int fd, std::span<std::byte> bytes, Deadline deadline);

}  // namespace trunkline

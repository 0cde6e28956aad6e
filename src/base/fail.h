// fail(kind, format, ...): throws Error with a formatted message.
#pragma once

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "trunkline/error.h"

namespace trunkline {

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

// As fail(system, ...), with the text of errno added.
template <typename... Args>
[[noreturn]] void fail_errno(fmt::format_string<Args...> format, Args&&... args) {
  const int code = errno;
  throw Error(ErrorKind::system,
              fmt::format("{}: {}", fmt::format(format, std::forward<Args>(args)...), std::strerror(code)));
}

}  // namespace trunkline

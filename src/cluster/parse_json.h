// JSON texts that people write.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/fail.h"
#include "base/json_reason.h"

namespace trunkline {

// Throws Error(input) with `where` and the line.
inline nlohmann::ordered_json parse_json(std::string_view text, const std::string& where) {
  try {
    return nlohmann::ordered_json::parse(text);
  } catch (const nlohmann::ordered_json::parse_error& error) {
    const auto end = text.begin() + static_cast<ptrdiff_t>(std::min(error.byte, text.size()));
    fail(ErrorKind::input, "{}:{}: is not JSON: {}", where, 1 + std::count(text.begin(), end, '\n'),
         json_reason(error.what()));
  }
}

}  // namespace trunkline

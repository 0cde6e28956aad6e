#pragma once

#include <string_view>

namespace trunkline {

// "0.1.0"
std::string_view version();

}  // namespace trunkline

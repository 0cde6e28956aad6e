#pragma once

#include <cstdio>

namespace trunkline {

// Whether a person may be looking: the stream is a terminal, so that a line can be rewritten.
bool is_terminal(std::FILE* stream);

}  // namespace trunkline

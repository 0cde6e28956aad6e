// Logging: spdlog to standard error. Programs call init_logging once; libraries log through log().
#pragma once

#include <spdlog/spdlog.h>

namespace trunkline {

// Level from Settings (TRUNKLINE_LOG: trace, debug, info, warning, error, off; default warning).
void init_logging();

}  // namespace trunkline

#include "base/version.h"

namespace trunkline {

std::string_view version() { return TRUNKLINE_VERSION; }

}  // namespace trunkline

// One edit of a JSON text that leaves every other byte as it was.
#pragma once

#include <string>

namespace trunkline {

// The text of a config.json with its dtype (the top-level keys dtype and torch_dtype, whichever there are; dtype is put
// in where there is neither) set to `name`. The text must be a JSON object.
std::string set_config_dtype(const std::string& text, const std::string& name);

}  // namespace trunkline

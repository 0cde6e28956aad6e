// A YAML file of options.
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

namespace trunkline {

// The one document of the file, null if there is none. Throws Error(input) naming the file, and the line where there is
// one. Stricter than yaml-cpp in that a quote must be closed on its line: of one that is not, yaml-cpp makes a value of
// all that follows, or complains lines later.
YAML::Node read_yaml(const std::string& file);

}  // namespace trunkline

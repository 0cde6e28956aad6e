// The options of `trunkline train`: each is a flag and a key of the YAML file (-c), under one name.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "cli/option_source.h"
#include "train/options.h"

namespace trunkline {

class TrainOptionParser {
 public:
  // Adds the flags to `command`.
  explicit TrainOptionParser(CLI::App& command);

  // After parsing: the command line over the YAML file over the defaults. Throws Error(input) naming the flag, or the
  // file, line and key, that is unknown, malformed or out of range.
  TrainOptions options() const;

 private:
  struct Flag {
    CLI::Option* option;
    std::string text;
  };
  std::map<std::string, std::unique_ptr<Flag>> flags_;  // by key
  std::string config_;
};

}  // namespace trunkline

// The subcommands of `trunkline`. Each has a file of its own, NAME_command.cc, with the function that is declared here;
// main.cc gathers them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace trunkline {

struct Command {
  CLI::App* app;             // its name, options and help; a subcommand of the `app` given
  std::function<int()> run;  // after parsing; returns the exit code, or throws Error (exit 1)
  // Where what follows `--` on the command line goes; without it, `--` is refused.
  std::vector<std::string>* program = nullptr;
};

}  // namespace trunkline

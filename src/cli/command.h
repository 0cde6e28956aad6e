// The subcommands of `trunkline`. Each has a file of its own, NAME_command.cc, with the function that is declared here;
// main.cc gathers them.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

namespace trunkline {

struct Command {
  CLI::App* app;  // its name, options and help; a subcommand of the `app` given
  // After parsing; returns the exit code, or throws Error (exit 1) or CLI::ParseError (exit 2).
  std::function<int()> run;
  // Where what follows `--` on the command line goes; without it, `--` is refused.
  std::vector<std::string>* program = nullptr;
};

Command bench_command(CLI::App& app);
Command bench_step_command(CLI::App& bench);  // of bench
Command fuse_command(CLI::App& app);
Command generate_command(CLI::App& app);
Command launch_command(CLI::App& app);
Command train_command(CLI::App& app);

}  // namespace trunkline

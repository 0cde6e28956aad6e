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
  // After parsing; returns the exit code, or throws Error (exit 1) or refuses.
  std::function<int()> run;
  // Where what follows `--` on the command line goes; without it, `--` is refused.
  std::vector<std::string>* program = nullptr;
};

// Of a command line that makes no sense: exit 2.
[[noreturn]] inline void refuse(const std::string& why) { throw CLI::ParseError(why, CLI::ExitCodes::ValidationError); }

Command bench_command(CLI::App& app);
Command bench_step_command(CLI::App& bench);  // of bench
Command fuse_command(CLI::App& app);
Command generate_command(CLI::App& app);
Command launch_command(CLI::App& app);
Command train_command(CLI::App& app);

}  // namespace trunkline

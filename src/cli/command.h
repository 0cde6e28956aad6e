// The subcommands of `trunkline`. Each has a file of its own, NAME_command.cc, with the function that is declared here;
// main.cc gathers them.
#pragma once

#include <fmt/format.h>

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

// Of an app with subcommands that lets extras pass: after parsing, refuses without one of them, naming what is there
// instead.
void require_command(const CLI::App& app);

// For CLI::Option::check: CLI::Range lets nan pass.
inline CLI::Validator number_between(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) {
        double number = 0.0;
        const bool within = CLI::detail::lexical_cast(text, number) && number >= low && number <= high;
        return within ? "" : fmt::format("\"{}\" is not a number from {} to {}", text, low, high);
      },
      "");
}

Command bench_command(CLI::App& app);
Command bench_step_command(CLI::App& bench);  // of bench
Command fuse_command(CLI::App& app);
Command generate_command(CLI::App& app);
Command launch_command(CLI::App& app);
Command train_command(CLI::App& app);

}  // namespace trunkline

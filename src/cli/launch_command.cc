#include <memory>

#include "cli/command.h"
#include "launch/launch.h"

namespace trunkline {

Command launch_command(CLI::App& app) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* const command = app.add_subcommand("launch", "Start the ranks of a job: launch -n N -- PROGRAM ARGS...");
  command->add_option("-n", options->ranks, "Ranks to start on this machine")
      ->required()
      ->check(CLI::Range(1, 1024))
      ->type_name("N");
  command->add_option("--log-dir", options->log_directory, "Also write each rank's lines to DIR/rank-R.log")
      ->type_name("DIR");
  command->footer("-- PROGRAM ARGS...\n  What each rank runs; its lines come out as \"[R] LINE\".");
  command->allow_extras();  // to say better what is wrong with them
  return {command,
          [command, options] {
            const std::vector<std::string> extras = command->remaining();
            if (!extras.empty() && extras[0].starts_with('-')) {
              throw CLI::ParseError("launch: unknown option " + extras[0], CLI::ExitCodes::ExtrasError);
            }
            if (!extras.empty() || options->program.empty()) {
              throw CLI::ParseError(
                  "launch: the program to start comes after --: trunkline launch -n N -- PROGRAM ARGS...",
                  CLI::ExitCodes::RequiredError);
            }
            return launch(*options);
          },
          &options->program};
}

}  // namespace trunkline

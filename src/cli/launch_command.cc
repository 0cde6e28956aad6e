#include <memory>
#include <string>

#include "base/file.h"
#include "cli/command.h"
#include "cluster/cables.h"
#include "launch/launch.h"
#include "trunkline/error.h"

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
  auto cables = std::make_shared<std::string>();
  auto fabric = std::make_shared<std::string>();
  CLI::Option* const cables_option =
      command
          ->add_option("--cables", *cables,
                       "Emulated RDMA cables: K for every pair of ranks, K[:key=value,...] with gbps, delay_us, loss, "
                       "damage, seed, cut=A-B.I@MS, mend=A-B.I@MS")
          ->type_name("SPEC");
  CLI::Option* const fabric_option =
      command
          ->add_option("--fabric", *fabric, "Emulated RDMA cables and devices as FILE describes them (docs/fabric.md)")
          ->type_name("FILE")
          ->excludes(cables_option);
  command->footer("-- PROGRAM ARGS...\n  What each rank runs; its lines come out as \"[R] LINE\".");
  command->allow_extras();  // to say better what is wrong with them
  return {command,
          [command, options, cables, fabric, cables_option, fabric_option] {
            const std::vector<std::string> extras = command->remaining();
            if (!extras.empty() && extras[0].starts_with('-')) {
              refuse("launch: unknown option " + extras[0]);
            }
            if (!extras.empty() || options->program.empty()) {
              refuse("launch: the program to start comes after --: trunkline launch -n N -- PROGRAM ARGS...");
            }
            if (cables_option->count() > 0) {
              try {
                options->wiring = wiring_from_spec(*cables, options->ranks);
              } catch (const Error& error) {
                refuse(error.what());
              }
            }
            if (fabric_option->count() > 0)
              options->wiring = wiring_from_json(read_file(*fabric), *fabric, options->ranks);
            return launch(*options);
          },
          &options->program};
}

}  // namespace trunkline

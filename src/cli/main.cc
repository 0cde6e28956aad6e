// trunkline: flags to values to calls. Exit codes: 0, 1 for a failure, 2 for a command line that makes no sense; launch
// has its own (docs/launch.md).
#include <algorithm>
#include <csignal>
#include <cstdio>

#include "base/fail.h"
#include "base/log.h"
#include "cli/command.h"
#include "model/backend.h"

namespace trunkline {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

int run(int argc, char** argv) {
  // What follows the first "--" belongs to another program and is not ours to parse.
  char** const dashes = std::find(argv, argv + argc, std::string("--"));
  std::vector<std::string> ours(argv + std::min(1, argc), dashes);
  std::reverse(ours.begin(), ours.end());  // as CLI11 wants them

  CLI::App app("Private fine-tuning of large language models on a few machines on a desk.", "trunkline");
  app.require_subcommand(1);
  app.set_version_flag("--version",
                       [] { return fmt::format("trunkline {}\n{}", TRUNKLINE_VERSION, describe_backend()); });
  const std::vector<Command> commands = {};
  try {
    app.parse(ours);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    if (dashes != argv + argc) {
      if (command.program == nullptr) {
        fmt::print(stderr, "trunkline {}: nothing may follow --\n", command.app->get_name());
        return kUsage;
      }
      command.program->assign(dashes + 1, argv + argc);
    }
    return command.run();
  }
  return kUsage;
}

}  // namespace
}  // namespace trunkline

int main(int argc, char** argv) {
  std::signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would hide how children end
  try {
    trunkline::init_logging();
    return trunkline::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "trunkline: {}\n", error.what());
    return trunkline::kFailure;
  }
}

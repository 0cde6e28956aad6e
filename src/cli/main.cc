// trunkline: flags to values to calls. Exit codes: 0, 1 for a failure, 2 for a command line that makes no sense; launch
// has its own (docs/launch.md).
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <string_view>

#include "base/fail.h"
#include "base/fd.h"
#include "base/log.h"
#include "base/version.h"
#include "cli/command.h"
#include "model/backend.h"

namespace trunkline {
namespace {

constexpr int kFailure = 1;
constexpr int kUsage = 2;

std::string line_of(std::string_view message) { return fmt::format("trunkline: {}\n", message); }

int run(int argc, char** argv) {
  // What follows the first "--" belongs to another program and is not ours to parse.
  char** const dashes = std::find(argv, argv + argc, std::string("--"));
  std::vector<std::string> ours(argv + std::min(1, argc), dashes);
  std::reverse(ours.begin(), ours.end());  // as CLI11 wants them

  CLI::App app("Private fine-tuning of large language models on a few machines on a desk.", "trunkline");
  app.require_subcommand(0, 1);
  app.failure_message([](const CLI::App*, const CLI::Error& error) { return line_of(error.what()); });
  app.set_version_flag("--version", [] { return fmt::format("trunkline {}\n{}", version(), describe_backend()); });
  const std::vector<Command> commands = {train_command(app), generate_command(app), fuse_command(app),
                                         launch_command(app), bench_command(app)};
  app.allow_extras();  // to say what is wrong with them: require_command. What was added before does not take it over
  try {
    app.parse(ours);
    require_command(app);
    const auto command =
        std::find_if(commands.begin(), commands.end(), [](const Command& it) { return it.app->parsed(); });
    if (dashes != argv + argc) {
      if (command->program == nullptr) throw CLI::ExtrasError({"--"});
      command->program->assign(dashes + 1, argv + argc);
    }
    return command->run();
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsage;
  }
}

}  // namespace
}  // namespace trunkline

int main(int argc, char** argv) {
  std::signal(SIGCHLD, SIG_DFL);  // inherited as ignored, it would hide how children end
  try {
    trunkline::open_standard_streams();
    trunkline::init_logging();
    const int code = trunkline::run(argc, argv);
    if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) trunkline::fail_errno("standard output");
    return code;
  } catch (const std::filesystem::filesystem_error& error) {
    std::fputs(trunkline::line_of(fmt::format("{}: {}", error.path1().string(), error.code().message())).c_str(),
               stderr);
  } catch (const std::exception& error) {
    std::fputs(trunkline::line_of(error.what()).c_str(), stderr);
  }
  return trunkline::kFailure;
}

#include <cmath>
#include <memory>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/tell_others.h"
#include "cli/train_options.h"
#include "train/trainer.h"

namespace trunkline {
namespace {

constexpr int kInterrupted = 130;  // as a shell tells SIGINT

int run_train(const TrainOptions& options) {
  Config config = Config::from_env();
  if (options.timeout) config.timeout = std::chrono::milliseconds(std::llround(1000.0 * *options.timeout));
  if (options.lanes) config.lanes = static_cast<int>(*options.lanes);
  if (options.algorithm) config.algorithm = *options.algorithm;
  const std::shared_ptr<Group> group = Group::connect(config);
  return or_tell_others(*group, [&] { return train(options, *group) == TrainOutcome::interrupted ? kInterrupted : 0; });
}

// Options that make no sense are a command line that makes none.
TrainOptions options_of(const TrainOptionParser& parser) {
  try {
    return parser.options();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input && error.kind() != ErrorKind::unsupported) throw;
    refuse(error.what());
  }
}

}  // namespace

Command train_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("train", "Fine-tune a model on your rows");
  const auto parser = std::make_shared<TrainOptionParser>(*command);
  return {command, [parser] { return run_train(options_of(*parser)); }};
}

}  // namespace trunkline

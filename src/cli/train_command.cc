#include <cmath>
#include <memory>

#include "base/fail.h"
#include "cli/command.h"
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
  try {
    return train(options, *group) == TrainOutcome::interrupted ? kInterrupted : 0;
  } catch (const std::exception& error) {
    group->abort(error.what());
    throw;
  }
}

}  // namespace

Command train_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("train", "Fine-tune a model on your rows");
  const auto parser = std::make_shared<TrainOptionParser>(*command);
  return {command, [parser] { return run_train(parser->options()); }};
}

}  // namespace trunkline

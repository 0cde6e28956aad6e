#include <memory>

#include "base/fail.h"
#include "cli/command.h"
#include "cli/train_options.h"
#include "train/trainer.h"

namespace trunkline {
namespace {

constexpr int kInterrupted = 130;  // as a shell tells SIGINT

int run_train(const TrainRequest& request) {
  Config config = Config::from_env();
  if (request.timeout) config.timeout = *request.timeout;
  if (request.lanes) config.lanes = *request.lanes;
  if (request.algorithm) config.algorithm = *request.algorithm;
  const std::shared_ptr<Group> group = Group::connect(config);
  try {
    return train(request.options, *group) == TrainOutcome::interrupted ? kInterrupted : 0;
  } catch (const std::exception& error) {
    group->abort(error.what());
    throw;
  }
}

}  // namespace

Command train_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("train", "Fine-tune a model on your rows");
  const auto parser = std::make_shared<TrainOptionParser>(*command);
  return {command, [parser] { return run_train(parser->request()); }};
}

}  // namespace trunkline

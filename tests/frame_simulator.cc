// frame_simulator: the frame protocol under random faults, as its test runs it, for other seeds and at any length.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>

#include "link/frame_simulator_test.h"

namespace {

using trunkline::simulator::Outcome;
using trunkline::simulator::Schedule;

void print(const Outcome& outcome) {
  fmt::print(
      "{} messages, {} of them credits; {} lost, {} damaged, {} found no receive, {} repeats, {} duplicates; "
      "{:.3f} s of virtual time{}\n",
      outcome.messages, outcome.credits, outcome.lost, outcome.damaged, outcome.overrun, outcome.repeats,
      outcome.duplicates, std::chrono::duration<double>(outcome.took).count(),
      outcome.error ? ", an error that is due" : "");
}

bool passes(const Schedule& schedule) {
  const Outcome outcome = trunkline::simulator::simulate(schedule);
  if (!outcome.failure.empty()) fmt::print("seed {}: {}\n", schedule.seed, outcome.failure);
  return outcome.failure.empty();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Runs the frame protocol under random faults; exit 1 on a wrong result");
  uint64_t seed = 0, schedules = 1, messages = 0;
  double loss = 1e-3;
  app.add_option("--seed", seed, "The first seed");
  app.add_option("--schedules", schedules, "How many random schedules, each of the next seed")->capture_default_str();
  app.add_option("--messages", messages, "Instead: one long schedule of so many messages");
  app.add_option("--loss", loss, "Its chance that a message is lost; a tenth of it: damaged")->capture_default_str();
  CLI11_PARSE(app, argc, argv);

  if (messages > 0 || schedules == 1) {
    const Schedule schedule = messages > 0 ? trunkline::simulator::long_schedule(seed, messages, loss)
                                           : trunkline::simulator::random_schedule(seed);
    const Outcome outcome = trunkline::simulator::simulate(schedule);
    print(outcome);
    if (!outcome.failure.empty()) fmt::print("seed {}: {}\n", seed, outcome.failure);
    return outcome.failure.empty() ? 0 : 1;
  }
  uint64_t failures = 0;
  for (uint64_t i = 0; i < schedules; ++i) failures += passes(trunkline::simulator::random_schedule(seed + i)) ? 0 : 1;
  fmt::print("{} schedules, {} failures\n", schedules, failures);
  return failures == 0 ? 0 : 1;
}

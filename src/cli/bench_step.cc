#include "cli/bench_step.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/clock.h"
#include "train/together.h"

namespace trunkline {
namespace {

using Track = Timeline::Track;

constexpr double StepTimes::*kTimes[] = {
    &StepTimes::iteration, &StepTimes::forward,        &StepTimes::backward,      &StepTimes::update,
    &StepTimes::exposed,   &StepTimes::exposed_gather, &StepTimes::communication, &StepTimes::last_communication,
    &StepTimes::hideable,  &StepTimes::hidden};

class StepBench {
 public:
  StepBench(Group& group, StepWork& work, Timeline& timeline, const StepBenchOptions& options)
      : group_(group), work_(work), timeline_(timeline), options_(options) {}

  // One step; of the times, those of the rank that took longest.
  StepTimes step(bool at_once) {
    work_.begin(++number_, at_once);
    timeline_.reset();
    group_.barrier();
    const auto start = Clock::now();
    work_.forward();
    waited_for_weights_ = timeline_.seconds(Track::exposed);
    const auto waited = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(waited_for_weights_));
    timeline_.add(Track::forward, "forward", start + waited);  // its length is that of the computation
    if (options_.sums) gather_values(group_, {0.0});           // training agrees on the loss here
    if (options_.sums) {
      backward_with_sums();
    } else {
      backward([&](const Piece& piece, std::vector<mx::array> gradients) { update(piece, std::move(gradients)); });
    }
    work_.end();
    return slowest(times(seconds_since(start)));
  }

  // Of the rank that took longest.
  GatherTimes gather_alone() {
    group_.barrier();
    const GatherTimes mine = work_.gather_alone();
    GatherTimes longest;
    for (const auto& each : gather_values(group_, {mine.all, mine.first})) {
      if (each[0] > longest.all) longest = {each[0], each[1]};
    }
    return longest;
  }

 private:
  void backward_with_sums() {
    GradientExchange exchange(
        group_, options_.exchange, timeline_,
        [&](const Piece& piece, std::vector<mx::array> gradients) { update(piece, std::move(gradients)); });
    try {
      backward(
          [&](const Piece& piece, std::vector<mx::array> gradients) { exchange.submit(piece, std::move(gradients)); });
      exchange.finish();
    } catch (const std::exception& error) {
      group_.abort(error.what());  // the exchange's thread ends its wait
      throw;
    }
  }

  void backward(const HandOver& hand_over) {
    bool first = true;
    auto start = Clock::now();
    work_.backward([&](const Piece& piece, std::vector<mx::array> gradients) {
      timeline_.add(Track::backward, "backward of " + piece.name, start);
      if (std::exchange(first, false)) first_piece_s_ = timeline_.newest(Track::backward);
      hand_over(piece, std::move(gradients));
      start = Clock::now();
    });
  }

  void update(const Piece& piece, std::vector<mx::array> gradients) {
    const Timeline::Span span(timeline_, Track::update, "update of " + piece.name);
    work_.update(piece, std::move(gradients));
  }

  StepTimes times(double iteration) const {
    const auto of = [&](Track track) { return timeline_.seconds(track); };
    StepTimes t{.iteration = iteration,
                .forward = of(Track::forward),
                .backward = of(Track::backward),
                .update = of(Track::update),
                .exposed = of(Track::exposed) - waited_for_weights_,
                .exposed_gather = waited_for_weights_,
                .communication = of(Track::communication),
                .last_communication = timeline_.newest(Track::communication)};
    const double to_hide = t.communication - t.last_communication;
    t.hideable = std::min(to_hide, std::max(0.0, t.backward - first_piece_s_ + t.update));
    t.hidden = std::max(0.0, to_hide - std::max(0.0, t.exposed - t.last_communication));
    return t;
  }

  StepTimes slowest(const StepTimes& mine) {
    std::vector<double> values;
    for (const auto time : kTimes) values.push_back(mine.*time);
    const auto all = gather_values(group_, values);
    const auto& longest = *std::ranges::max_element(all, {}, [](const auto& each) { return each.front(); });
    StepTimes found;
    for (size_t i = 0; i < std::size(kTimes); ++i) found.*kTimes[i] = longest[i];
    return found;
  }

  Group& group_;
  StepWork& work_;
  Timeline& timeline_;
  const StepBenchOptions& options_;
  int64_t number_ = 0;
  double first_piece_s_ = 0.0, waited_for_weights_ = 0.0;
};

double share(double part, double whole) {
  return whole > 0.0 ? part / whole : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

StepBenchResult run_step_bench(Group& group, StepWork& work, Timeline& timeline, const StepBenchOptions& options) {
  StepBench bench(group, work, timeline, options);
  for (int i = 0; i < options.warmup; ++i) bench.step(true);
  StepBenchResult result;
  const std::vector<CableTraffic> before = group.cables();
  uint64_t wrong = 0;
  for (int i = 0; i < options.iterations; ++i) {
    result.steps.push_back(bench.step(false));
    if (options.check) wrong += work.count_wrong();
  }
  if (options.check) result.wrong = wrong;
  const auto n = static_cast<uint64_t>(options.iterations);
  result.cables = group.cables();
  for (size_t i = 0; i < result.cables.size(); ++i) {
    CableTraffic& cable = result.cables[i];
    const bool known = i < before.size() && before[i].id == cable.id && before[i].peer == cable.peer;
    cable.bytes_sent = (cable.bytes_sent - (known ? before[i].bytes_sent : 0)) / n;
    cable.bytes_received = (cable.bytes_received - (known ? before[i].bytes_received : 0)) / n;
  }
  for (const auto time : kTimes) {
    for (const StepTimes& step : result.steps) result.mean.*time += step.*time / static_cast<double>(n);
  }
  result.hidden_fraction = share(result.mean.hidden, result.mean.communication - result.mean.last_communication);
  if (work.shards() != nullptr) {
    const GatherTimes gather = bench.gather_alone();
    const double to_hide = gather.all - gather.first;
    result.gather = gather;
    result.gather_hidden_fraction =
        share(to_hide - std::clamp(result.mean.exposed_gather - gather.first, 0.0, to_hide), to_hide);
  }
  return result;
}

}  // namespace trunkline

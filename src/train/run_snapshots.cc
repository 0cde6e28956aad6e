#include "train/run_snapshots.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/fail.h"
#include "base/version.h"
#include "bridge/arrays.h"
#include "train/clip.h"
#include "train/together.h"

namespace trunkline {

RunSnapshots::RunSnapshots(Group& group, const std::filesystem::path& output, const std::vector<TensorShape>& layout,
                           int64_t keep, bool keeps_best)
    : group_(group), store_(output, layout, keep), layout_(layout), keeps_best_(keeps_best) {}

void RunSnapshots::clean() const {
  if (group_.rank() == 0) store_.clean();
}

std::optional<Resumed> RunSnapshots::resume(const std::vector<Fact>& facts, RunWeights& weights,
                                            std::vector<std::string>& warnings) {
  std::optional<Snapshot> snapshot;
  nlohmann::ordered_json note;
  together(group_, [&] {
    if (group_.rank() != 0) return;
    store_.clean();
    snapshot = store_.load_newest(facts, warnings);
    if (!snapshot) return;
    note = {{"state", to_json(snapshot->state)},
            {"ranks", snapshot->ranks},
            {"has_best", keeps_best_ && holds_best(snapshot->state, warnings)}};
  });
  note = nlohmann::ordered_json::parse(gather_text(group_, note.dump()).front());
  if (note.is_null()) return std::nullopt;
  Resumed resumed = {.state = run_state_from(note["state"]), .ranks = note["ranks"], .optimizer = {}};
  saved_ = resumed.state.step;
  if (note["has_best"]) best_ = resumed.state.best.step;

  const std::vector<size_t>& tensors = weights.trained().tensors();
  Parameters given = snapshot ? std::move(snapshot->weights) : weights.trained().of(weights.parameters());
  for (const size_t tensor : tensors) weights.parameters()[tensor] = mx::array(0.0f);  // let go
  broadcast(group_, given, 0);
  for (size_t i = 0; i < given.size(); ++i) {
    weights.parameters()[tensors[i]] = std::exchange(given[i], mx::array(0.0f));
  }
  if (snapshot) resumed.optimizer = std::move(snapshot->optimizer);
  return resumed;
}

bool RunSnapshots::holds_best(const RunState& state, std::vector<std::string>& warnings) const {
  if (!state.best.loss) return false;
  return state.best.step == state.step || store_.holds(state.best.step, warnings);
}

void RunSnapshots::save(const RunState& state, uint64_t seed, const std::vector<Fact>& facts, RunWeights& weights) {
  const Parameters trained = weights.trained_weights();
  if (state.best.step == state.step) best_ = state.step;
  NamedArrays optimizer = weights.optimizer_state();
  together(group_, [&] {
    if (group_.rank() != 0) return;
    if (const auto bad = first_not_finite(trained)) {
      fail(ErrorKind::numeric, "step {}: the update made {} infinite or not a number; {}", state.step,
           layout_[*bad].name, last_good());
    }
    store_.save({.state = state,
                 .seed = seed,
                 .ranks = group_.size(),
                 .version = std::string(version()),
                 .facts = facts,
                 .weights = trained,
                 .optimizer = std::move(optimizer)},
                keeps_best_ && has_best(state) ? std::optional(best_) : std::nullopt);
  });
  saved_ = state.step;
}

std::filesystem::path RunSnapshots::path_of(int64_t step) const { return store_.path_of(step); }

std::string RunSnapshots::last_good() const {
  if (saved_ == 0) return "no checkpoint was saved yet; the model that training began with is untouched";
  return fmt::format("the last good checkpoint is {}", path_of(saved_).string());
}

void RunSnapshots::or_say_how_to_go_on(const std::function<void()>& work) const {
  const auto fail_as = [&](ErrorKind kind, const std::string& message) {
    // Another rank's words may say it already.
    if (message.find(last_good()) != std::string::npos) throw Error(kind, message);
    fail(kind, "{}; {}{}", message, last_good(),
         saved_ == 0 ? "" : ": with the cause put right, the same command with --resume goes on from it");
  };
  try {
    work();
  } catch (const Error& error) {
    const ErrorKind kind = error.kind();
    if (kind != ErrorKind::peer && kind != ErrorKind::timeout && kind != ErrorKind::system) throw;
    fail_as(kind, error.what());
  } catch (const std::filesystem::filesystem_error& error) {
    fail_as(ErrorKind::system, error.what());
  }
}

void RunSnapshots::warn_of_lost_best(const RunState& state, bool saved_at_end, bool nothing_left,
                                     std::vector<std::string>& warnings) const {
  if (!keeps_best_ || !state.best.loss || has_best(state)) return;
  const char* then = !saved_at_end ? ""
                     : nothing_left
                         ? ": the model that is saved is that of the last step"
                         : ": unless a later one is better, the model that is saved is that of the last step";
  warnings.push_back(fmt::format("there is no checkpoint of the best validation so far, {:.4f} at step {}{}",
                                 *state.best.loss, state.best.step, then));
}

Parameters RunSnapshots::load_best_here() const {
  try {
    return store_.load_weights(best_);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input) throw;
    fail(ErrorKind::system, "the checkpoint of the best validation was damaged while this run went on: {}",
         error.what());
  }
}

void RunSnapshots::load_best(Parameters& weights) const {
  together(group_, [&] {
    weights.clear();
    if (group_.rank() == 0) {
      weights = load_best_here();
      return;
    }
    for (const TensorShape& shape : layout_) {
      weights.push_back(mx::zeros({shape.dims.begin(), shape.dims.end()}, mx::float32));
    }
  });
  broadcast(group_, weights, 0);
}

}  // namespace trunkline

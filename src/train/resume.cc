#include "train/resume.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "bridge/arrays.h"
#include "train/together.h"

namespace trunkline {
namespace {

// Rank 0's `weights` become what is trained of all ranks' parameters.
void give(Group& group, Parameters weights, Parameters& parameters, const Trained& trained) {
  for (const size_t tensor : trained.tensors()) parameters[tensor] = mx::array(0.0f);  // let go
  broadcast(group, weights, 0);
  for (size_t i = 0; i < weights.size(); ++i) {
    parameters[trained.tensors()[i]] = std::exchange(weights[i], mx::array(0.0f));
  }
}

}  // namespace

std::optional<Resumed> resume(Group& group, const SnapshotStore* store, const std::vector<Fact>& facts,
                              Parameters& parameters, const Trained& trained, Optimizer& optimizer,
                              const Shards* shards, std::vector<std::string>& warnings) {
  std::optional<Snapshot> snapshot;
  nlohmann::ordered_json note;
  together(group, [&] {
    if (store == nullptr) return;
    store->clean();
    snapshot = store->load_newest(facts, warnings);
    if (!snapshot) return;
    note = {{"state", to_json(snapshot->state)},
            {"ranks", snapshot->ranks},
            {"has_best", std::filesystem::exists(store->path_of(snapshot->state.best.step))}};
  });
  note = nlohmann::ordered_json::parse(gather_text(group, note.dump()).front());
  if (note.is_null()) return std::nullopt;
  Resumed resumed = {.state = run_state_from(note["state"]), .ranks = note["ranks"], .has_best = note["has_best"]};
  give(group, snapshot ? std::move(snapshot->weights) : trained.of(parameters), parameters, trained);
  if (shards != nullptr) {
    const NamedArrays whole = snapshot ? std::move(snapshot->optimizer) : NamedArrays();
    optimizer.restore(scatter_state(group, *shards, whole, optimizer.state()), resumed.state.step);
    return resumed;
  }
  std::vector<std::pair<std::string, mx::array>> state = snapshot ? std::move(snapshot->optimizer) : optimizer.state();
  std::ranges::sort(state, {}, &std::pair<std::string, mx::array>::first);
  std::vector<mx::array> arrays;
  for (auto& [name, array] : state) arrays.push_back(std::exchange(array, mx::array(0.0f)));
  broadcast(group, arrays, 0);
  for (size_t i = 0; i < arrays.size(); ++i) state[i].second = std::exchange(arrays[i], mx::array(0.0f));
  optimizer.restore(state, resumed.state.step);
  return resumed;
}

void load_weights(Group& group, const SnapshotStore* store, int64_t step, Parameters& parameters,
                  const Trained& trained) {
  Parameters weights;
  together(group, [&] { weights = store != nullptr ? store->load_weights(step) : trained.of(parameters); });
  give(group, std::move(weights), parameters, trained);
}

}  // namespace trunkline

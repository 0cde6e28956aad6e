#include "train/resume.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "bridge/arrays.h"
#include "train/together.h"

namespace trunkline {

std::optional<Resumed> resume(Group& group, const SnapshotStore* store, const std::vector<Fact>& facts,
                              Parameters& parameters, Optimizer& optimizer, std::vector<std::string>& warnings) {
  std::optional<Snapshot> snapshot;
  nlohmann::json note;
  together(group, [&] {
    if (store == nullptr) return;
    store->clean();
    snapshot = store->load_newest(facts, warnings);
    if (snapshot) note = {{"step", snapshot->step}, {"tokens", snapshot->trained_tokens}, {"ranks", snapshot->ranks}};
  });
  note = nlohmann::json::parse(gather_text(group, note.dump()).front());
  if (note.is_null()) return std::nullopt;
  const Resumed resumed = {.step = note["step"], .trained_tokens = note["tokens"], .ranks = note["ranks"]};
  if (snapshot) parameters = std::move(snapshot->weights);
  broadcast(group, parameters, 0);
  std::vector<std::pair<std::string, mx::array>> state = snapshot ? std::move(snapshot->optimizer) : optimizer.state();
  std::ranges::sort(state, {}, &std::pair<std::string, mx::array>::first);
  std::vector<mx::array> arrays;
  for (auto& [name, array] : state) arrays.push_back(std::exchange(array, mx::array(0.0f)));
  broadcast(group, arrays, 0);
  for (size_t i = 0; i < arrays.size(); ++i) state[i].second = std::exchange(arrays[i], mx::array(0.0f));
  optimizer.restore(state, resumed.step);
  return resumed;
}

}  // namespace trunkline

#include "train/snapshot.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/json_reason.h"
#include "base/version.h"
#include "model/safetensors.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;
constexpr const char* kWeights = "weights.safetensors";
constexpr const char* kOptimizer = "optimizer.safetensors";
constexpr const char* kState = "state.json";
constexpr const char* kManifest = "manifest.json";  // sizes and checksums of the other three

uint32_t checksum_of(const fs::path& path, uint64_t size) {
  const InputFile file(path);
  if (file.size() != size) fail(ErrorKind::input, "{}: {} bytes instead of {}", path.string(), file.size(), size);
  std::string block(1 << 20, '\0');
  uint32_t crc = 0;
  for (uint64_t at = 0; at < size;) {
    const size_t part = std::min<uint64_t>(block.size(), size - at);
    file.read_at(at, block.data(), part);
    crc = crc32c(block.data(), part, crc);
    at += part;
  }
  return crc;
}

Json state_json(const Snapshot& snapshot) {
  Json facts = Json::object();
  for (const Fact& fact : snapshot.facts) facts[fact.name] = fact.value;
  Json json = {{"format", kFormat}, {"version", version()}};
  json.update(to_json(snapshot.state));
  json.update({{"seed", snapshot.seed}, {"ranks", snapshot.ranks}, {"facts", std::move(facts)}});
  return json;
}

// A directory entry's name as a step: digits alone.
std::optional<int64_t> step_of(const std::string& name) {
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc{} || end != name.data() + name.size() || name != std::to_string(step)) return std::nullopt;
  return step;
}

}  // namespace

SnapshotStore::SnapshotStore(const fs::path& output, std::vector<TensorShape> layout, int64_t keep)
    : directory_(output / "checkpoints"), layout_(std::move(layout)), keep_(keep) {}

fs::path SnapshotStore::path_of(int64_t step) const { return directory_ / std::to_string(step); }

std::vector<int64_t> SnapshotStore::steps() const {
  std::vector<int64_t> steps;
  if (!fs::is_directory(directory_)) return steps;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    const std::optional<int64_t> step = step_of(entry.path().filename().string());
    if (step && entry.is_directory()) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

void SnapshotStore::clean() const {
  if (!fs::is_directory(directory_)) return;
  std::vector<fs::path> parts;
  for (const auto& entry : fs::directory_iterator(directory_)) {
    if (entry.path().extension() == ".part") parts.push_back(entry.path());
  }
  for (const fs::path& part : parts) fs::remove_all(part);
}

std::optional<Snapshot> SnapshotStore::load_newest(const std::vector<Fact>& facts,
                                                   std::vector<std::string>& warnings) const {
  const std::vector<int64_t> all = steps();
  for (auto step = all.rbegin(); step != all.rend(); ++step) {
    try {
      return load(*step, facts);
    } catch (const Error& error) {
      set_aside(*step, error, warnings);
    }
  }
  return std::nullopt;
}

bool SnapshotStore::holds(int64_t step, std::vector<std::string>& warnings) const {
  if (!fs::is_directory(path_of(step))) return false;
  try {
    checked_state(step);
    return true;
  } catch (const Error& error) {
    set_aside(step, error, warnings);
    return false;
  }
}

// Throws `why` again if it does not mean damage.
void SnapshotStore::set_aside(int64_t step, const Error& why, std::vector<std::string>& warnings) const {
  if (why.kind() != ErrorKind::input && why.kind() != ErrorKind::system) throw why;
  fs::path aside = path_of(step);
  aside += ".damaged";
  fs::remove_all(aside);
  rename_directory(path_of(step), aside);
  warnings.push_back(
      fmt::format("checkpoint {} is damaged and was set aside as {}: {}", step, aside.string(), why.what()));
}

nlohmann::ordered_json SnapshotStore::checked_state(int64_t step) const {
  const fs::path directory = path_of(step);
  const auto parsed = [&](const char* name) {
    try {
      return Json::parse(read_file(directory / name));
    } catch (const nlohmann::json::exception& error) {
      fail(ErrorKind::input, "{}: {}", (directory / name).string(), json_reason(error.what()));
    }
  };
  try {
    const Json manifest = parsed(kManifest);
    for (const auto& [name, file] : manifest.at("files").items()) {
      const uint32_t crc = checksum_of(directory / name, file.at("bytes").get<uint64_t>());
      if (crc != file.at("crc32c").get<uint32_t>()) {
        fail(ErrorKind::input, "{}: the checksum is not that of the manifest", (directory / name).string());
      }
    }
    Json state = parsed(kState);
    if (state.at("format") != kFormat) {
      fail(ErrorKind::unsupported, "{}: format {} is not known here", (directory / kState).string(),
           state.at("format").dump());
    }
    return state;
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::input, "{}: {}", directory.string(), json_reason(error.what()));
  }
}

Snapshot SnapshotStore::load(int64_t step, const std::vector<Fact>& facts) const {
  const fs::path directory = path_of(step);
  const Json state = checked_state(step);
  Snapshot snapshot;
  try {
    snapshot.state = run_state_from(state);
    snapshot.seed = state.at("seed");
    snapshot.ranks = state.at("ranks");
    snapshot.version = state.at("version");
    for (const auto& [name, value] : state.at("facts").items()) snapshot.facts.push_back({name, value});
  } catch (const nlohmann::json::exception& error) {
    fail(ErrorKind::input, "{}: {}", (directory / kState).string(), json_reason(error.what()));
  }
  if (const std::string differing = differences(snapshot.facts, facts); !differing.empty()) {
    fail(ErrorKind::mismatch,
         "{} was made by a run that differs from this one, which therefore cannot go on from it:{}\n"
         "use the settings and data of that run, or another --output",
         directory.string(), differing);
  }
  snapshot.weights = read_weights(step);
  const SafetensorsFile optimizer(directory / kOptimizer);
  for (const auto& [name, tensor] : optimizer.tensors()) snapshot.optimizer.emplace_back(name, optimizer.load(name));
  return snapshot;
}

Parameters SnapshotStore::load_weights(int64_t step) const {
  checked_state(step);
  return read_weights(step);
}

Parameters SnapshotStore::read_weights(int64_t step) const {
  const SafetensorsFile file(path_of(step) / kWeights);
  Parameters weights;
  for (const TensorShape& shape : layout_) weights.push_back(file.load(shape.name));
  return weights;
}

void SnapshotStore::save(const Snapshot& snapshot, std::optional<int64_t> best) const {
  fs::create_directories(directory_);
  const fs::path target = path_of(snapshot.state.step);
  fs::path part = target;
  part += ".part";
  fs::remove_all(part);
  fs::create_directory(part);
  try {
    write(snapshot, part);
    rename_directory(part, target);
  } catch (...) {
    std::error_code ignored;
    fs::remove_all(part, ignored);
    throw;
  }
  keep_newest(best);
}

void SnapshotStore::write(const Snapshot& snapshot, const fs::path& directory) const {
  std::vector<NamedTensor> weights, optimizer;
  for (size_t i = 0; i < layout_.size(); ++i) {
    weights.push_back({layout_[i].name, snapshot.weights[i], mx::float32});
  }
  for (const auto& [name, array] : snapshot.optimizer) optimizer.push_back({name, array, mx::float32});
  write_safetensors(directory / kWeights, weights);
  write_safetensors(directory / kOptimizer, optimizer);
  write_file(directory / kState, state_json(snapshot).dump(2) + "\n");
  Json files = Json::object();
  for (const char* name : {kWeights, kOptimizer, kState}) {
    const uint64_t bytes = fs::file_size(directory / name);
    files[name] = {{"bytes", bytes}, {"crc32c", checksum_of(directory / name, bytes)}};
  }
  write_file(directory / kManifest, Json{{"files", files}}.dump(2) + "\n");
}

void SnapshotStore::keep_newest(std::optional<int64_t> best) const {
  const std::vector<int64_t> all = steps();
  for (size_t i = 0; i + static_cast<size_t>(keep_) < all.size(); ++i) {
    if (all[i] == best) continue;
    // Out of the way first, so that a snapshot that is half removed is not taken for one.
    fs::path part = path_of(all[i]);
    part += ".part";
    fs::remove_all(part);
    rename_directory(path_of(all[i]), part);
    fs::remove_all(part);
  }
}

}  // namespace trunkline

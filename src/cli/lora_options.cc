#include "cli/lora_options.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <utility>
#include <vector>

#include "base/fail.h"

namespace trunkline {
namespace {

std::vector<std::string> names_of(const OptionSource& source) {
  std::vector<std::string> names;
  if (source.node().IsSequence()) {
    for (const YAML::Node& entry : source.node()) {
      if (!entry.IsScalar() || entry.Scalar().empty()) source.refuse("a list of names is expected");
      names.push_back(entry.Scalar());
    }
  } else {
    std::istringstream text(source.text());
    for (std::string name; std::getline(text, name, ',');) {
      if (name.empty()) source.refuse("names with commas between them are expected");
      names.push_back(name);
    }
  }
  if (names.empty()) source.refuse("no module is named");
  std::vector<std::string> once;
  for (const std::string& name : names) {
    if (std::ranges::count(once, name) == 0) once.push_back(name);
  }
  return once;
}

// One value of lora_parameters, under its key there.
void set_lora_value(LoraOptions& lora, const std::string& key, const OptionSource& source) {
  if (key == "rank") {
    lora.rank = source.integer(1, 1 << 20);
  } else if (key == "scale") {
    lora.scale = source.number(0.0, 1e6);
    if (*lora.scale == 0.0) source.refuse("0 makes the adapter nothing, and it learns nothing");
  } else if (key == "alpha") {
    lora.alpha = source.number(0.0, 1e9);
    if (*lora.alpha == 0.0) source.refuse("0 makes the adapter nothing, and it learns nothing");
  } else if (key == "dropout") {
    lora.dropout = source.number(0.0, 1.0);
    if (lora.dropout == 1.0) source.refuse("1 is too much: less than 1 is needed");
  } else if (key == "keys") {
    lora.keys = names_of(source);
  } else if (key == "rslora") {
    lora.rslora = source.boolean();
  } else {
    source.refuse("unknown key");
  }
  if (lora.scale && lora.alpha) source.refuse("scale and alpha are both given: one of them says the other");
}

int64_t layer_count(const OptionSource& source) {
  if (source.text() == "all") return -1;
  const int64_t count = source.integer(-1);
  if (count == 0) source.refuse("0 layers are none; all are -1");
  return count;
}

}  // namespace

void set_fine_tuning(TrainOptions& options, const std::map<std::string, OptionSource>& sources) {
  LoraOptions& lora = options.lora;
  const auto given = [&](const std::string& key) {
    const auto found = sources.find(key);
    return found == sources.end() ? nullptr : &found->second;
  };
  const std::pair<const char*, const char*> flags[] = {{"lora_rank", "rank"},   {"lora_scale", "scale"},
                                                       {"lora_alpha", "alpha"}, {"lora_dropout", "dropout"},
                                                       {"lora_keys", "keys"},   {"rslora", "rslora"}};
  if (const OptionSource* const layers = given("num_layers")) options.num_layers = layer_count(*layers);
  const auto only_for_adapters = [&](const OptionSource& source) {
    if (options.fine_tune != FineTune::full) return;
    source.refuse("counts for an adapter alone: fine_tune_type is full, not lora or dora");
  };
  const auto without_start = [&](const OptionSource& source) {
    only_for_adapters(source);
    if (!lora.start.empty()) source.refuse("the adapter to begin with has settings of its own");
  };
  if (const OptionSource* const start = given("adapter")) {
    only_for_adapters(*start);
    lora.start = start->text();
  }
  if (const OptionSource* const file = given("resume_adapter_file")) {
    only_for_adapters(*file);
    const std::filesystem::path path = file->text();
    if (path.filename() != "adapter_model.safetensors") file->refuse("an adapter_model.safetensors is expected");
    lora.start = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  }
  if (!lora.start.empty() && given("num_layers") != nullptr) without_start(*given("num_layers"));
  if (const OptionSource* const values = given("lora_parameters")) {
    without_start(*values);
    for (const auto& [key, value] : values->entries()) {
      if (!value.is_null()) set_lora_value(lora, key, value);
    }
  }
  // A flag of the pair scale and alpha takes the place of the other in the file.
  if (given("lora_scale") != nullptr || given("lora_alpha") != nullptr) lora.scale = lora.alpha = std::nullopt;
  for (const auto& [flag, key] : flags) {
    const OptionSource* const value = given(flag);
    if (value == nullptr) continue;
    without_start(*value);
    set_lora_value(lora, key, *value);
  }
}

}  // namespace trunkline

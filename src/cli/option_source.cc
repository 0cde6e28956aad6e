#include "cli/option_source.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/fail.h"

namespace trunkline {

OptionSource OptionSource::from_flag(const std::string& flag, const std::string& text) {
  return {"", 0, flag, YAML::Node(text)};
}

OptionSource OptionSource::from_yaml(const std::string& file, const YAML::Node& document) {
  return {file, 1, "", document};
}

void OptionSource::refuse(const std::string& why) const {
  const std::string what = name_.empty() ? why : name_ + ": " + why;
  if (file_.empty()) fail(ErrorKind::input, "{}", what);
  fail(ErrorKind::input, "{}:{}: {}", file_, line_, what);
}

bool OptionSource::is_off() const {
  return is_null() || (node_.IsScalar() && (node_.Scalar() == "false" || node_.Scalar() == "False"));
}

std::string OptionSource::text() const {
  if (!node_.IsScalar()) refuse("one value is expected");
  if (node_.Scalar().empty()) refuse("a value is expected, and it is empty");
  return node_.Scalar();
}

int64_t OptionSource::integer(int64_t low, int64_t high) const {
  const std::string value = text();
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
  if (error != std::errc{} || end != value.data() + value.size()) {
    refuse(fmt::format("\"{}\" is not a whole number", value));
  }
  if (number < low) refuse(fmt::format("{} is less than {}", number, low));
  if (number > high) refuse(fmt::format("{} is more than {}", number, high));
  return number;
}

double OptionSource::number(double low, double high) const {
  const std::string value = text();
  double number = 0.0;
  size_t used = 0;
  try {
    number = std::stod(value, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != value.size() || !std::isfinite(number)) {
    refuse(fmt::format("\"{}\" is not a number", value));
  }
  if (number < low) refuse(fmt::format("{} is less than {}", number, low));
  if (number > high) refuse(fmt::format("{} is more than {}", number, high));
  return number;
}

bool OptionSource::boolean() const {
  const std::string value = text();
  if (value == "true" || value == "True") return true;
  if (value == "false" || value == "False") return false;
  refuse(fmt::format("\"{}\" is neither true nor false", value));
}

std::string OptionSource::one_of(const std::vector<std::string>& names) const {
  const std::string value = text();
  if (std::ranges::find(names, value) == names.end()) {
    refuse(fmt::format("\"{}\" is not one of {}", value, fmt::join(names, ", ")));
  }
  return value;
}

std::vector<double> OptionSource::numbers() const {
  if (!node_.IsSequence()) refuse("a list of numbers is expected");
  std::vector<double> values;
  for (const YAML::Node& entry : node_) {
    values.push_back(OptionSource(file_, line_, name_, entry).number(std::numeric_limits<double>::lowest()));
  }
  return values;
}

std::vector<std::pair<std::string, OptionSource>> OptionSource::entries() const {
  if (!node_.IsMap()) refuse("keys with values are expected");
  std::vector<std::pair<std::string, OptionSource>> found;
  const std::string within = name_.empty() ? "" : name_ + ": ";
  for (const auto& entry : node_) {
    const YAML::Node& key_node = entry.first;
    const int line = key_node.Mark().line + 1;
    if (!key_node.IsScalar() || key_node.Scalar().empty()) {
      const char* const kind = key_node.IsNull()       ? "null"
                               : key_node.IsSequence() ? "a list"
                               : key_node.IsMap()      ? "a map"
                                                       : "an empty text";
      fail(ErrorKind::input, "{}:{}: {}a key is the name of an option, and here it is {}", file_, line, within, kind);
    }
    const std::string key = key_node.Scalar();
    const OptionSource source(file_, line, within + key, entry.second);
    if (std::ranges::count(found, key, &std::pair<std::string, OptionSource>::first) > 0) {
      source.refuse("the key is there twice");
    }
    found.emplace_back(key, source);
  }
  return found;
}

}  // namespace trunkline

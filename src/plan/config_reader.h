// ConfigReader: typed access to an object of a JSON configuration, with errors that name the file and the key.
#pragma once

#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/fail.h"

namespace trunkline {

class ConfigReader {
 public:
  // `prefix` stands before keys in messages: "rope_scaling." for the object under that key.
  ConfigReader(const nlohmann::json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
    if (!object_.is_object()) fail(ErrorKind::input, "{}: {} is not a JSON object", file_, where());
  }

  // Null counts as absent, as it does to transformers.
  bool has(const std::string& key) const { return object_.contains(key) && !object_[key].is_null(); }
  bool contains(const std::string& key) const { return object_.contains(key); }
  const nlohmann::json& at(const std::string& key) const { return object_[key]; }
  ConfigReader object(const std::string& key) const { return {at(key), file_, prefix_ + key + "."}; }

  // A whole number in [low, 2^31): MLX's dimensions are 32-bit.
  int64_t integer(const std::string& key, int64_t low = 1) const {
    require(key);
    if (!at(key).is_number_integer()) reject(key, "is not a whole number");
    const double value = at(key).get<double>();
    if (value < static_cast<double>(low) || value > kLargest) {
      reject(key, fmt::format("is not within {} .. {}", low, static_cast<int64_t>(kLargest)));
    }
    return at(key).get<int64_t>();
  }
  int64_t integer_or(const std::string& key, int64_t absent, int64_t low = 1) const {
    return has(key) ? integer(key, low) : absent;
  }

  double positive(const std::string& key) const {
    require(key);
    if (!at(key).is_number()) reject(key, "is not a number");
    const double value = at(key).get<double>();
    if (!(value > 0) || !std::isfinite(value)) reject(key, "is not positive");
    return value;
  }
  double positive_or(const std::string& key, double absent) const { return has(key) ? positive(key) : absent; }

  bool flag_or(const std::string& key, bool absent) const {
    if (!has(key)) return absent;
    if (!at(key).is_boolean()) reject(key, "is neither true nor false");
    return at(key).get<bool>();
  }

  std::string text(const std::string& key) const {
    require(key);
    if (!at(key).is_string()) reject(key, "is not a string");
    return at(key).get<std::string>();
  }

  [[noreturn]] void reject(const std::string& key, const std::string& why) const {
    fail(ErrorKind::input, "{}: {}{}: {} {}", file_, prefix_, key, at(key).dump(), why);
  }
  [[noreturn]] void unsupported(const std::string& key, const std::string& what) const {
    fail(ErrorKind::unsupported, "{}: {}{}: {} is not supported: {}", file_, prefix_, key, at(key).dump(), what);
  }
  [[noreturn]] void wrong(const std::string& what) const { fail(ErrorKind::input, "{}: {}", file_, what); }

 private:
  static constexpr double kLargest = 2147483647.0;

  void require(const std::string& key) const {
    if (!has(key)) fail(ErrorKind::input, "{}: {}{} is missing", file_, prefix_, key);
  }
  std::string where() const { return prefix_.empty() ? "it" : prefix_.substr(0, prefix_.size() - 1); }

  const nlohmann::json& object_;
  std::string file_, prefix_;
};

}  // namespace trunkline

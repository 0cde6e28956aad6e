// Where an option's value comes from, a flag or a YAML file, and its reading with messages that say where.
#pragma once

#include <yaml-cpp/yaml.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace trunkline {

class OptionSource {
 public:
  // A flag's text; `flag` as the user writes it: "--iters".
  static OptionSource from_flag(const std::string& flag, const std::string& text);
  // A node of a YAML file; messages begin with "FILE:LINE: key".
  static OptionSource from_yaml(const std::string& file, const std::string& key, const YAML::Node& node);

  const YAML::Node& node() const { return node_; }
  bool is_null() const { return node_.IsNull(); }

  // Each throws Error(input) saying what is expected instead.
  std::string text() const;
  int64_t integer(int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) const;
  double number(double low, double high = std::numeric_limits<double>::max()) const;  // finite; 1e-5 is a number
  bool boolean() const;
  std::string one_of(const std::vector<std::string>& names) const;
  std::vector<double> numbers() const;
  // The entries of a map, in the file's order.
  std::vector<std::pair<std::string, OptionSource>> entries() const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  OptionSource(std::string file, std::string name, const YAML::Node& node)
      : file_(std::move(file)), name_(std::move(name)), node_(node) {}

  std::string file_;  // empty: the command line
  std::string name_;
  YAML::Node node_;
};

}  // namespace trunkline

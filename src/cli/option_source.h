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
  // A YAML file's document; messages about its entries begin with "FILE:LINE: key".
  static OptionSource from_yaml(const std::string& file, const YAML::Node& document);

  const YAML::Node& node() const { return node_; }
  bool is_null() const { return node_.IsNull(); }
  bool is_off() const;                               // null or false
  const std::string& name() const { return name_; }  // as the user writes it: "--iters", "lora_parameters: rank"

  // Each throws Error(input) saying what is expected instead.
  std::string text() const;  // not empty
  int64_t integer(int64_t low, int64_t high = std::numeric_limits<int64_t>::max()) const;
  double number(double low, double high = std::numeric_limits<double>::max()) const;  // finite; 1e-5 is a number
  bool boolean() const;
  std::string one_of(const std::vector<std::string>& names) const;
  std::vector<double> numbers() const;
  // The entries of a map, in the file's order; each key is a name, and there once.
  std::vector<std::pair<std::string, OptionSource>> entries() const;

  [[noreturn]] void refuse(const std::string& why) const;

 private:
  OptionSource(std::string file, int line, std::string name, const YAML::Node& node)
      : file_(std::move(file)), line_(line), name_(std::move(name)), node_(node) {}

  std::string file_;  // empty: the command line
  int line_ = 0;      // there, from 1: the key's
  std::string name_;
  YAML::Node node_;
};

}  // namespace trunkline

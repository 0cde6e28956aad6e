// Flags of the benchmarks: how the ranks talk, and where the lines of JSON go.
#pragma once

#include <CLI/CLI.hpp>
#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trunkline/group.h"

namespace trunkline {

// What is not given stays as the environment says.
struct GroupFlags {
  std::optional<Workers> workers;
  std::optional<int> trunks, lanes;
  std::optional<size_t> frame_bytes;
  std::string trunking_from;
  std::optional<Algorithm> algorithm;
  std::optional<bool> crc;
  std::optional<double> timeout;

  void add(CLI::App& app);
  Config config() const;
};

// For CLI::Option::check: "4096", "32K", "64M", "1G".
std::string check_size(const std::string& text);

// The same, of a file to write: a name.
std::string check_file(const std::string& text);

// The file of --json, if any; lines are there as soon as they are written. A regular file that has something else than
// lines of a benchmark in it is refused.
class JsonLines {
 public:
  explicit JsonLines(std::string path);
  void write(const nlohmann::ordered_json& line);

 private:
  void require();

  std::string path_;
  std::ofstream file_;
};

}  // namespace trunkline

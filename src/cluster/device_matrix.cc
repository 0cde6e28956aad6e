// A device matrix as JSON, and what holds for every one.
#include <set>

#include "base/fail.h"
#include "cluster/cables.h"
#include "cluster/parse_json.h"

namespace trunkline {
namespace {

using Json = nlohmann::ordered_json;

std::string read_name(const Json& json, const std::string& where) {
  if (!json.is_string() || json.get_ref<const std::string&>().empty()) {
    fail(ErrorKind::input, "{}: is {}, not a device's name, a list of names, or null where there is no cable", where,
         json.dump());
  }
  return json.get<std::string>();
}

std::vector<std::string> read_cell(const Json& json, const std::string& where) {
  if (json.is_null()) return {};
  if (!json.is_array()) return {read_name(json, where)};
  std::vector<std::string> names;
  for (size_t i = 0; i < json.size(); ++i) names.push_back(read_name(json[i], fmt::format("{}, entry {}", where, i)));
  return names;
}

}  // namespace

DeviceMatrix device_matrix_from_json(std::string_view text, const std::string& where, int ranks) {
  const Json json = parse_json(text, where);
  if (!json.is_array()) {
    fail(ErrorKind::input, "{}: is {}, not a list of rows, one a rank", where, json.type_name());
  }
  if (json.size() != static_cast<size_t>(ranks)) {
    fail(ErrorKind::input, "{}: has {} rows, and the job has {} ranks", where, json.size(), ranks);
  }
  DeviceMatrix matrix(json.size());
  for (size_t row = 0; row < json.size(); ++row) {
    if (!json[row].is_array()) {
      fail(ErrorKind::input, "{}: row {}: is {}, not a list of cells, one a rank", where, row, json[row].type_name());
    }
    for (size_t column = 0; column < json[row].size(); ++column) {
      matrix[row].push_back(read_cell(json[row][column], fmt::format("{}: row {}, column {}", where, row, column)));
    }
  }
  check_device_matrix(matrix, where);
  return matrix;
}

void check_device_matrix(const DeviceMatrix& matrix, const std::string& where) {
  for (size_t row = 0; row < matrix.size(); ++row) {
    if (matrix[row].size() != matrix.size()) {
      fail(ErrorKind::input, "{}: row {}: has {} cells; it needs one for each of {} ranks", where, row,
           matrix[row].size(), matrix.size());
    }
  }
  for (size_t row = 0; row < matrix.size(); ++row) {
    std::set<std::string> names;
    for (size_t column = 0; column < matrix.size(); ++column) {
      const auto& cell = matrix[row][column];
      if (row == column && !cell.empty()) {
        fail(ErrorKind::input, "{}: row {}, column {}: is {}, but a rank has no cable to itself", where, row, column,
             cell[0]);
      }
      if (const auto& back = matrix[column][row]; row < column && cell.size() != back.size()) {
        fail(ErrorKind::input,
             "{}: row {}, column {}: names {} devices, and row {}, column {} names {}: each cable has a device at both "
             "ends",
             where, row, column, cell.size(), column, row, back.size());
      }
      for (const std::string& name : cell) {
        if (!names.insert(name).second) {
          fail(ErrorKind::input, "{}: row {}, column {}: names {} again, but a device has one cable", where, row,
               column, name);
        }
      }
    }
  }
}

}  // namespace trunkline

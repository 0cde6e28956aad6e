#include "model/json_edit.h"

#include <string_view>

namespace trunkline {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

// The end of the string that begins at `at` (a quotation mark): one past its closing mark.
size_t end_of_string(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return at + 1;
}

// The end of the value that begins at `at`, of any type.
size_t end_of_value(std::string_view text, size_t at) {
  if (text[at] == '"') return end_of_string(text, at);
  int depth = 0;
  for (; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '"') {
      at = end_of_string(text, at) - 1;
    } else if (c == '{' || c == '[') {
      ++depth;
    } else if (c == '}' || c == ']') {
      if (depth == 0) return at;
      if (--depth == 0) return at + 1;
    } else if (depth == 0 && (c == ',' || kSpace.find(c) != kSpace.npos)) {
      return at;
    }
  }
  return at;
}

}  // namespace

std::string set_config_dtype(const std::string& text, const std::string& name) {
  const std::string value = '"' + name + '"';
  std::string result;
  size_t copied = 0;
  bool found = false;
  const size_t open = text.find('{');
  size_t at = text.find_first_not_of(kSpace, open + 1);
  const bool empty = at == std::string::npos || text[at] == '}';
  while (at < text.size() && text[at] == '"') {
    const size_t key_end = end_of_string(text, at);
    const std::string_view key = std::string_view(text).substr(at + 1, key_end - at - 2);
    const size_t begin = text.find_first_not_of(kSpace, text.find(':', key_end) + 1);
    const size_t end = end_of_value(text, begin);
    if (key == "dtype" || key == "torch_dtype") {
      result.append(text, copied, begin - copied).append(value);
      copied = end;
      found = true;
    }
    at = text.find(',', end);
    if (at != std::string::npos) at = text.find_first_not_of(kSpace, at + 1);
  }
  result.append(text, copied, std::string::npos);
  if (!found) result.insert(open + 1, "\n  \"dtype\": " + value + (empty ? "\n" : ","));
  return result;
}

}  // namespace trunkline

#include "model/json_edit.h"

#include <string_view>
#include <vector>

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

// A top-level key and its value: [key, value_end) from the opening quotation mark on, the value from `value` on.
struct Entry {
  std::string name;
  size_t key, value, value_end;
};

std::vector<Entry> entries_of(std::string_view text) {
  std::vector<Entry> entries;
  size_t at = text.find_first_not_of(kSpace, text.find('{') + 1);
  while (at < text.size() && text[at] == '"') {
    const size_t key_end = end_of_string(text, at);
    const size_t begin = text.find_first_not_of(kSpace, text.find(':', key_end) + 1);
    const size_t end = end_of_value(text, begin);
    entries.push_back({std::string(text.substr(at + 1, key_end - at - 2)), at, begin, end});
    at = text.find(',', end);
    if (at != std::string_view::npos) at = text.find_first_not_of(kSpace, at + 1);
  }
  return entries;
}

void put_in(std::string& text, const std::string& key, const std::string& value) {
  const bool empty = entries_of(text).empty();
  text.insert(text.find('{') + 1, "\n  \"" + key + "\": " + value + (empty ? "\n" : ","));
}

}  // namespace

std::string edit_json(const std::string& text, const std::string& key, const std::optional<std::string>& value) {
  std::string result = text;
  const std::vector<Entry> entries = entries_of(text);
  bool found = false;
  // From the last on, so that places before an edit stay.
  for (size_t i = entries.size(); i-- > 0;) {
    if (entries[i].name != key) continue;
    found = true;
    if (value) {
      result.replace(entries[i].value, entries[i].value_end - entries[i].value, *value);
    } else if (i + 1 < entries.size()) {
      result.erase(entries[i].key, entries[i + 1].key - entries[i].key);
    } else {
      const size_t begin = i > 0 ? entries[i - 1].value_end : entries[i].key;
      result.erase(begin, entries[i].value_end - begin);
    }
  }
  if (!found && value) put_in(result, key, *value);
  return result;
}

std::string set_config_dtype(const std::string& text, const std::string& name) {
  const std::string value = '"' + name + '"';
  std::string result = text;
  bool found = false;
  for (const char* key : {"dtype", "torch_dtype"}) {
    for (const Entry& entry : entries_of(result)) {
      if (entry.name != key) continue;
      result = edit_json(result, key, value);
      found = true;
      break;
    }
  }
  if (!found) put_in(result, "dtype", value);
  return result;
}

}  // namespace trunkline

#include "train/jsonl.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

using Json = nlohmann::json;

constexpr size_t kShown = 10;
constexpr std::array<std::string_view, 7> kRoles = {"system", "developer", "user",   "assistant",
                                                    "tool",   "function",  "ipython"};

// "field: what is wrong", for the first thing that is.
struct Wrong {
  std::string what;
};

template <typename... Args>
[[noreturn]] void wrong(fmt::format_string<Args...> format, Args&&... args) {
  throw Wrong{fmt::format(format, std::forward<Args>(args)...)};
}

std::string a_kind_of(const Json& value) {
  if (value.is_null()) return "null";
  if (value.is_boolean()) return "true or false";
  if (value.is_number()) return "a number";
  if (value.is_string()) return "a string";
  return value.is_array() ? "a list" : "an object";
}

// The value at `key`, or nullptr for a missing one.
const Json* find(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

void check_string(const Json* value, const std::string& field) {
  if (value == nullptr) wrong("{}: is missing", field);
  if (!value->is_string()) wrong("{}: is {}, not a string", field, a_kind_of(*value));
}

void check_list_of_objects(const Json& value, const std::string& field) {
  if (!value.is_array()) wrong("{}: is {}, not a list", field, a_kind_of(value));
  for (size_t i = 0; i < value.size(); ++i) {
    if (!value[i].is_object()) wrong("{}[{}]: is {}, not an object", field, i, a_kind_of(value[i]));
  }
}

void check_content(const Json* content, const std::string& field, bool may_lack) {
  if (content == nullptr || content->is_null()) {
    if (may_lack) return;
    wrong("{}: is {}", field, content == nullptr ? "missing" : "null");
  }
  if (content->is_string()) return;
  if (!content->is_array()) wrong("{}: is {}, not a string or a list of parts", field, a_kind_of(*content));
  check_list_of_objects(*content, field);
  for (size_t i = 0; i < content->size(); ++i) {
    const std::string part = fmt::format("{}[{}]", field, i);
    check_string(find((*content)[i], "type"), part + ".type");
    if ((*content)[i]["type"] != "text") wrong("{}.type: only parts of type text can be used", part);
    check_string(find((*content)[i], "text"), part + ".text");
  }
}

// {"function": {"name", "arguments"}} as in OpenAI's format, or {"name", "arguments"} alone.
void check_tool_calls(const Json& calls, const std::string& field) {
  check_list_of_objects(calls, field);
  for (size_t i = 0; i < calls.size(); ++i) {
    std::string place = fmt::format("{}[{}]", field, i);
    const Json* function = find(calls[i], "function");
    if (function != nullptr) {
      place += ".function";
      if (!function->is_object()) wrong("{}: is {}, not an object", place, a_kind_of(*function));
    } else {
      function = &calls[i];
    }
    check_string(find(*function, "name"), place + ".name");
    const Json* arguments = find(*function, "arguments");
    if (arguments != nullptr && !arguments->is_object() && !arguments->is_string()) {
      wrong("{}.arguments: is {}, not an object or a string", place, a_kind_of(*arguments));
    }
  }
}

void check_message(const Json& message, const std::string& field) {
  const Json* role = find(message, "role");
  check_string(role, field + ".role");
  if (std::find(kRoles.begin(), kRoles.end(), role->get_ref<const std::string&>()) == kRoles.end()) {
    wrong("{}.role: is not one of {}", field, fmt::join(kRoles, ", "));
  }
  const Json* calls = find(message, "tool_calls");
  const bool has_calls = calls != nullptr && !calls->is_null();
  if (has_calls) {
    if (*role != "assistant") wrong("{}.tool_calls: only an assistant's message may have them", field);
    check_tool_calls(*calls, field + ".tool_calls");
  }
  check_content(find(message, "content"), field + ".content", has_calls && !calls->empty());
  for (const char* name : {"reasoning_content", "reasoning", "thinking"}) {
    const Json* reasoning = find(message, name);
    if (reasoning != nullptr && !reasoning->is_null()) check_string(reasoning, fmt::format("{}.{}", field, name));
  }
}

RowKind check_row(const Json& row, const RowFields& fields) {
  if (!row.is_object()) wrong("row: is {}, not an object", a_kind_of(row));
  if (const Json* tools = find(row, "tools"); tools != nullptr && !tools->is_null()) {
    check_list_of_objects(*tools, "tools");
  }
  const Json* prompt = find(row, fields.prompt);
  const Json* completion = find(row, fields.completion);
  const Json* messages = find(row, fields.messages);
  const Json* text = find(row, fields.text);
  if ((prompt != nullptr && completion != nullptr) ||
      ((prompt != nullptr || completion != nullptr) && messages == nullptr && text == nullptr)) {
    check_string(prompt, fields.prompt);
    check_string(completion, fields.completion);
    return RowKind::completion;
  }
  if (messages != nullptr) {
    check_list_of_objects(*messages, fields.messages);
    if (messages->empty()) wrong("{}: is empty", fields.messages);
    for (size_t i = 0; i < messages->size(); ++i)
      check_message((*messages)[i], fmt::format("{}[{}]", fields.messages, i));
    return RowKind::chat;
  }
  if (text == nullptr) {
    wrong("row: has none of {}, {} with {}, and {}", fields.text, fields.prompt, fields.completion, fields.messages);
  }
  check_string(text, fields.text);
  return RowKind::text;
}

// Characters in UTF-8 text that may be damaged.
int64_t characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

// What the parser has against a line, without the part that quotes it: "... - REASON; last read: 'TEXT'; ...".
std::string reason_of(std::string_view message) {
  const size_t begin = message.find(" - "), end = message.find(';', begin);
  if (begin == std::string_view::npos || end == std::string_view::npos) return "it cannot be read";
  return std::string(message.substr(begin + 3, end - begin - 3));
}

std::optional<RowKind> check_line(int64_t number, std::string_view line, const RowFields& fields, Faults& faults) {
  if (const size_t nul = line.find('\0'); nul != std::string_view::npos) {
    faults.add(number, "row: has a NUL byte", characters(line.substr(0, nul)) + 1);
    return std::nullopt;
  }
  try {
    return check_row(Json::parse(line), fields);
  } catch (const Json::parse_error& error) {
    const size_t byte = std::clamp<size_t>(error.byte, 1, line.size());
    faults.add(number, fmt::format("row: is not valid JSON: {}", reason_of(error.what())),
               characters(line.substr(0, byte - 1)) + 1);
  } catch (const Json::exception&) {
    faults.add(number, "row: has a number that is too large");
  } catch (const Wrong& fault) {
    faults.add(number, fault.what);
  }
  return std::nullopt;
}

bool is_blank(std::string_view line) { return line.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

}  // namespace

void Faults::add(int64_t line, const std::string& what, int64_t column) {
  ++count_;
  if (first_.size() == kShown) return;
  first_.push_back(column > 0 ? fmt::format("{}:{}:{}: {}", file_, line, column, what)
                              : fmt::format("{}:{}: {}", file_, line, what));
}

void Faults::throw_if_any() const {
  if (count_ == 0) return;
  std::string text = fmt::format("{}", fmt::join(first_, "\n"));
  if (const int64_t more = count_ - static_cast<int64_t>(first_.size()); more > 0) {
    text += fmt::format("\n{}: and {} more faulty row{}", file_, more, more == 1 ? "" : "s");
  }
  fail(ErrorKind::input, "{}", text);
}

DataRows check_rows(const std::string& file, std::string_view bytes, const RowFields& fields) {
  if (bytes.empty()) fail(ErrorKind::input, "{}: is empty; it needs a JSON object a line", file);
  require_content(file, bytes);
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff")) {
    fail(ErrorKind::input, "{}:1: row: is UTF-16 text; save the file as UTF-8", file);
  }
  if (bytes.starts_with("\xef\xbb\xbf")) bytes.remove_prefix(3);
  DataRows result;
  Faults faults(file);
  for (int64_t number = 1; !bytes.empty(); ++number) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    const std::string_view line = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (is_blank(line)) {
      ++result.blank;
    } else if (const auto kind = check_line(number, line, fields, faults)) {
      result.rows.push_back({number, line, *kind});
    }
  }
  faults.throw_if_any();
  if (result.rows.empty()) fail(ErrorKind::input, "{}: has blank lines only; it needs a JSON object a line", file);
  return result;
}

}  // namespace trunkline

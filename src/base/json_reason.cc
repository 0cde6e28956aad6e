#include "base/json_reason.h"

namespace trunkline {

// "[json.exception.parse_error.101] parse error at line 3, column 7: syntax error while parsing value - REASON; last
// read: 'TEXT'; expected ...", or "[json.exception.KIND.NUMBER] REASON".
std::string json_reason(std::string_view what) {
  if (const size_t end = what.find("] "); what.starts_with("[json.exception.") && end != what.npos) {
    what.remove_prefix(end + 2);
  }
  constexpr std::string_view kParsing = "parse error at ";
  if (!what.starts_with(kParsing)) return std::string(what);
  what.remove_prefix(kParsing.size());
  const size_t place = what.find(": "), begin = what.find(" - ");
  if (place == what.npos || begin == what.npos) return std::string(what.substr(0, what.find(';')));
  const size_t end = what.find(';', begin);
  return std::string(what.substr(0, place + 2)) +
         std::string(what.substr(begin + 3, end == what.npos ? what.npos : end - begin - 3));
}

}  // namespace trunkline

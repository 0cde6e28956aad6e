// What the JSON library has against a text, in words for people.
#pragma once

#include <string>
#include <string_view>

namespace trunkline {

// `what`: of an exception of nlohmann/json. "line 3, column 7: unexpected end of input" of a text that is not JSON;
// "key 'bytes' not found" of a value that is not as expected. Nothing of the text is quoted but keys that were looked
// for.
std::string json_reason(std::string_view what);

}  // namespace trunkline

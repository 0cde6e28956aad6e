// Edits of a JSON text that leave every other byte as it was. The text must be a JSON object.
#pragma once

#include <optional>
#include <string>

namespace trunkline {

// The text with its top-level `key` set to `value` (as JSON spells it), put in where it is missing; without a value,
// the key is taken out.
std::string edit_json(const std::string& text, const std::string& key, const std::optional<std::string>& value);

// The text of a config.json with its dtype (the top-level keys dtype and torch_dtype, whichever there are; dtype is put
// in where there is neither) set to `name`.
std::string set_config_dtype(const std::string& text, const std::string& name);

}  // namespace trunkline

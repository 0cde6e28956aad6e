// Text: a model's chat template and tokenizer, exactly as Hugging Face applies them. They run in a child process (one
// Python file, with the libraries jinja2 and tokenizers); this is the interface to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trunkline {

// Which assistant turns of a conversation are targets.
enum class TargetTurns { all_tokens, all_assistant, last_assistant };

struct TokenizedRow {
  std::vector<int32_t> ids;
  std::vector<uint8_t>
      targets;  // parallel to ids: 1 where predicting this token counts in the loss (never at position 0)
};

// A row, or why it could not be rendered or tokenized (`error` not empty; names the field).
struct RowResult {
  TokenizedRow row;
  std::string error;
};

class Text {
 public:
  // Starts the child for the model in `directory` (tokenizer.json, tokenizer_config.json, chat_template.jinja ...).
  // Throws Error(input) naming the file that is missing or broken.
  explicit Text(const std::filesystem::path& directory);
  ~Text();

  // The conversation as the model's template renders it. `messages` and `tools` as in chat JSONL.
  std::string render(const nlohmann::json& messages, const nlohmann::json& tools, bool add_generation_prompt);

  // Plain text to ids; `special`: add the tokens that the tokenizer's post-processor adds (bos, say).
  std::vector<int32_t> encode(const std::string& text, bool special);
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = true);

  // Data rows as JSON objects of one kind each ({"text"}, {"prompt","completion"}, {"messages","tools"?}), in order.
  // Rows are sent in batches and tokenized whole (no truncation).
  std::vector<RowResult> tokenize(const std::vector<nlohmann::json>& rows, TargetTurns targets);

  // Names and versions of what makes the tokens (template, tokenizer file, library versions): part of a cache's key.
  std::string fingerprint() const;
  // Ids that end a turn or text: eos_token of the tokenizer config and eos_token_id of config.json and
  // generation_config.json.
  std::vector<int64_t> stop_ids() const;
  // Size of the tokenizer's vocabulary with added tokens.
  int64_t vocabulary() const;
  // Things the user should know: a generation config without the end token that the template uses, say.
  std::vector<std::string> warnings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trunkline

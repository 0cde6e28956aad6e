// Text: a model's chat template and tokenizer, exactly as Hugging Face applies them. They run in a child process (one
// Python file, with the libraries jinja2 and tokenizers); this is the interface to it. docs/data.md says what it does.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace trunkline {

// Which tokens of a row are targets. Text rows have no turns: for them, all_tokens alone is possible.
enum class TargetTurns { all_tokens, all_assistant, last_assistant };

// Names of the fields of data rows.
struct RowFields {
  std::string text = "text", prompt = "prompt", completion = "completion", messages = "messages";
};

struct TokenizedRow {
  std::vector<int32_t> ids;
  std::vector<uint8_t>
      targets;  // parallel to ids: 1 where predicting this token counts in the loss (never at position 0)
};

// A row, or why it could not be rendered or tokenized (`error` not empty: "FIELD: what is wrong", no text of the row).
struct RowResult {
  TokenizedRow row;
  std::string error;
};

class Text {
 public:
  // Starts the child for the model in `directory` (tokenizer.json, tokenizer_config.json, chat_template.jinja ...).
  // `today` (YYYY-MM-DD) is the date for templates that write it into a conversation; empty: the clock's.
  // Throws Error(input) naming the file that is missing or broken, or what Python lacks. Every member throws
  // Error(system) if the child has died and Error(timeout) if it does not answer.
  explicit Text(const std::filesystem::path& directory, const std::string& today = "");
  ~Text();
  Text(Text&&) noexcept;
  Text& operator=(Text&&) noexcept;

  // The conversation as the model's template renders it. `messages` and `tools` (or null) as in chat JSONL; templates
  // see their keys in order. Throws Error(input) if the template refuses it.
  std::string render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                     bool add_generation_prompt);

  // Plain text to ids; `special`: add the tokens that the tokenizer's post-processor adds (bos, say). A rendered
  // conversation has its special tokens already.
  std::vector<int32_t> encode(const std::string& text, bool special);
  std::string decode(const std::vector<int32_t>& ids, bool skip_special = true);

  // Data rows (JSON objects that hold prompt and completion, messages, or text, looked for in this order), tokenized
  // whole (no truncation), in order. Meant for batches of rows.
  std::vector<RowResult> tokenize(const std::vector<std::string_view>& rows, const RowFields& fields,
                                  TargetTurns targets);

  // A hash of all that makes the tokens (templates, tokenizer files, date, library versions): part of a cache's key.
  const std::string& fingerprint() const;
  // Ids that end a turn or text: eos_token of the tokenizer config, eos_token_id of config.json and
  // generation_config.json, and what the chat template ends a turn with.
  const std::vector<int64_t>& stop_ids() const;
  // Size of the tokenizer's vocabulary with added tokens.
  int64_t vocabulary() const;
  // The date (YYYY-MM-DD) that the model's templates write into conversations; empty if they write none.
  const std::string& today() const;
  // Things the user should know: a generation config without the end token that the template uses, say. tokenize() may
  // add to them.
  const std::vector<std::string>& warnings() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace trunkline

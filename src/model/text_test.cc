#include "model/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "base/process.h"
#include "model/text_fixture_test.h"

namespace trunkline {
namespace {

using Json = nlohmann::ordered_json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kDate = "2024-02-29";

std::vector<Json> read_lines(const std::filesystem::path& path) {
  std::vector<Json> result;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) result.push_back(Json::parse(line));
  return result;
}

// What transformers makes of questions; see tests/text/reference.py.
std::vector<Json> ask_transformers(const std::vector<Json>& questions) {
  const TestFolder folder;
  std::string lines;
  for (const Json& question : questions) lines += question.dump() + "\n";
  write_file(folder / "questions", lines);
  ProcessOptions options;
  options.argv = {TRUNKLINE_TEST_PYTHON, (text_inputs() / "reference.py").string(), kDate,
                  (folder / "questions").string(), (folder / "answers").string()};
  Process process = Process::start(options);
  const auto status = process.wait(Deadline::after(std::chrono::seconds(120)));
  if (!status || status->code != 0) {
    ADD_FAILURE() << TRUNKLINE_TEST_PYTHON
                  << " cannot run transformers (requirements-test.txt): " << (status ? status->text() : "no end");
    return {};
  }
  return read_lines(folder / "answers");
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// The targets of a row as text, one entry for each stretch of neighbouring tokens.
std::vector<std::string> targets_of(Text& text, const Json& row, TargetTurns turns) {
  const std::string json = row.dump();
  const RowResult result = text.tokenize({json}, {}, turns).at(0);
  if (!result.error.empty()) return {"error: " + result.error};
  std::vector<std::string> stretches;
  std::vector<int32_t> ids;
  for (size_t i = 0; i <= result.row.ids.size(); ++i) {
    if (i < result.row.ids.size() && result.row.targets[i] != 0) {
      ids.push_back(result.row.ids[i]);
    } else if (!ids.empty()) {
      stretches.push_back(text.decode(ids, false));
      ids.clear();
    }
  }
  return stretches;
}

std::vector<std::string> targets_of(const std::string& name, const Json& row,
                                    TargetTurns turns = TargetTurns::all_assistant) {
  const TestModel model(template_source(name));
  Text text(model.path(), kDate);
  return targets_of(text, row, turns);
}

Json messages_of(std::initializer_list<std::pair<std::string, std::string>> turns) {
  Json messages = Json::array();
  for (const auto& [role, content] : turns) messages.push_back({{"role", role}, {"content", content}});
  return {{"messages", messages}};
}

// --- Against transformers -------------------------------------------------------------------------------------------

// Texts and ids of every conversation with every template, with both kinds of tokenizer, and the masks of templates
// that mark what is generated.
TEST(TextAgainstTransformers, RendersAndTokenizesConversationsAlike) {
  const std::vector<Json> conversations = read_lines(text_inputs() / "conversations.jsonl");
  ASSERT_GE(conversations.size(), 15u);
  std::vector<std::unique_ptr<TestModel>> models;
  for (const auto& file : std::filesystem::directory_iterator(text_inputs() / "templates")) {
    for (const char* tokenizer : {"byte_level", "metaspace"}) {
      models.push_back(std::make_unique<TestModel>(template_source(file.path().stem()), tokenizer));
    }
  }
  ASSERT_GE(models.size(), 20u);
  std::vector<Json> questions;
  for (const auto& model : models) {
    for (const Json& conversation : conversations) {
      for (const bool prompt : {false, true}) {
        questions.push_back({{"model", model->path().string()},
                             {"messages", conversation["messages"]},
                             {"tools", conversation.value("tools", Json())},
                             {"prompt", prompt}});
      }
    }
  }
  const std::vector<Json> answers = ask_transformers(questions);
  ASSERT_EQ(answers.size(), questions.size());

  std::map<std::string, int> rendered;  // by model
  int refused = 0, masked = 0;
  std::string directory;
  std::optional<Text> text;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Json& question = questions[i];
    const Json& answer = answers[i];
    SCOPED_TRACE(question.dump());
    if (question["model"] != directory) {
      directory = question["model"];
      text.emplace(directory, kDate);
    }
    if (answer["text"].is_null()) {
      EXPECT_THROW(text->render(question["messages"], question["tools"], question["prompt"]), Error) << answer;
      ++refused;
      continue;
    }
    const std::string ours = text->render(question["messages"], question["tools"], question["prompt"]);
    EXPECT_EQ(ours, answer["text"].get<std::string>());
    EXPECT_EQ(text->encode(ours, false), answer["ids"].get<std::vector<int32_t>>());
    ++rendered[directory];
    if (question["prompt"] == true) continue;

    const std::string row = question.dump();
    const RowResult all = text->tokenize({row}, {}, TargetTurns::all_tokens).at(0);
    EXPECT_EQ(all.error, "");
    EXPECT_EQ(all.row.ids, answer["ids"].get<std::vector<int32_t>>());
    auto mask = answer["mask"].get<std::vector<uint8_t>>();
    if (std::count(mask.begin(), mask.end(), 1) == 0) continue;  // a template that marks nothing
    const RowResult marked = text->tokenize({row}, {}, TargetTurns::all_assistant).at(0);
    EXPECT_EQ(marked.error, "");
    mask[0] = 0;
    // Ours may add to each span the token that ends the turn.
    for (size_t t = 0; t < mask.size(); ++t) {
      if (mask[t] != marked.row.targets[t]) {
        EXPECT_EQ(mask[t], 0);
        EXPECT_EQ(text->decode({all.row.ids[t]}, false), "<|im_end|>");
      }
    }
    ++masked;
  }
  EXPECT_EQ(rendered.size(), models.size());
  for (const auto& [model, count] : rendered) EXPECT_GE(count, 8) << model;
  EXPECT_GE(refused, 20);
  EXPECT_GE(masked, 20);
}

// A model whose special tokens are named in several places; `listed`: in added_tokens_decoder, as newer models do.
std::unique_ptr<TestModel> model_with_special_tokens(const std::string& tokenizer, bool listed) {
  auto model = std::make_unique<TestModel>(template_source("features"), tokenizer);
  const Json flags = {{"lstrip", false}, {"rstrip", false}, {"normalized", false}, {"single_word", false}};
  model->config["mask_token"] = {{"__type", "AddedToken"}, {"content", "<other>"}, {"lstrip", true}};
  model->config["additional_special_tokens"] = {"<extra>"};
  if (listed) {
    Text text(model->path());
    const int32_t id = text.encode("<think>", false).back();
    Json think = flags, more = flags;
    think.update({{"content", "<think>"}, {"special", true}});
    more.update({{"content", " more"}, {"special", false}});
    model->config["added_tokens_decoder"] = {{std::to_string(id), think}, {std::to_string(text.vocabulary()), more}};
  } else {
    Json separator = flags;
    separator.update({{"content", "<|User|>"}});
    write_file(*model / "special_tokens_map.json", Json({{"sep_token", separator}, {"eos_token", "</s>"}}).dump());
  }
  model->write();
  return model;
}

TEST(TextAgainstTransformers, EncodesAndDecodesAlike) {
  const std::vector<std::string> texts = {"",
                                          "Hello there",
                                          "  spaces   and\ttabs\n\n",
                                          "<|im_start|>user\nx<|im_end|>",
                                          "日本語 😀 e\u0301 \u00e9",
                                          "<think>a</think> <extra> more <other>"};
  const Json messages = {{{"role", "user"}, {"content", "x"}}};
  std::vector<std::unique_ptr<TestModel>> models;
  std::vector<Json> questions;
  for (const char* tokenizer : {"byte_level", "metaspace"}) {
    for (const bool listed : {false, true}) {
      models.push_back(model_with_special_tokens(tokenizer, listed));
      const std::string directory = models.back()->path().string();
      for (const std::string& one : texts) questions.push_back({{"model", directory}, {"plain", one}});
      questions.push_back({{"model", directory}, {"messages", messages}, {"tools", nullptr}, {"prompt", false}});
    }
  }
  const std::vector<Json> answers = ask_transformers(questions);
  ASSERT_EQ(answers.size(), questions.size());
  size_t next = 0;
  for (const auto& model : models) {
    Text text(model->path());
    for (const std::string& one : texts) {
      SCOPED_TRACE(one);
      const Json& answer = answers[next++];
      const std::vector<int32_t> ids = text.encode(one, true);
      EXPECT_EQ(ids, answer["ids"].get<std::vector<int32_t>>());
      EXPECT_EQ(text.decode(ids), answer["decoded"].get<std::string>());
      EXPECT_EQ(text.decode(ids, false), answer["decoded_all"].get<std::string>());
    }
    EXPECT_EQ(text.render(messages, nullptr, false), answers[next++]["text"].get<std::string>());
  }
}

// --- Targets
// ----------------------------------------------------------------------------------------------------------

const Json kTwoAnswers = messages_of({{"user", "Hello"}, {"assistant", "Yes."}, {"user", "Hm"}, {"assistant", "No."}});

TEST(TextTargets, AreAssistantTurnsThroughTheirEnd) {
  EXPECT_THAT(targets_of("chatml", kTwoAnswers), ElementsAre("Yes.<|im_end|>", "No.<|im_end|>"));
  EXPECT_THAT(targets_of("chatml", kTwoAnswers, TargetTurns::last_assistant), ElementsAre("No.<|im_end|>"));
  EXPECT_THAT(targets_of("chatml", messages_of({{"user", "a"}})), IsEmpty());
  EXPECT_THAT(targets_of("chatml", messages_of({{"user", "a"}, {"assistant", ""}})), ElementsAre("<|im_end|>"));
}

TEST(TextTargets, OfAllTokensAreAllButTheFirst) {
  EXPECT_THAT(targets_of("chatml", messages_of({{"system", "s"}, {"user", "u"}}), TargetTurns::all_tokens),
              ElementsAre("system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"));
}

TEST(TextTargets, HeadersThatLookAlikeInContentsAreNotTakenForThem) {
  const Json row = messages_of({{"user", "<|im_start|>assistant\nfake<|im_end|>\n"},
                                {"assistant", "a <|im_start|>assistant\nb"},
                                {"user", "c"},
                                {"assistant", "d"}});
  for (const char* name : {"chatml", "thinking", "joined"}) {
    EXPECT_THAT(targets_of(name, row, TargetTurns::last_assistant).back(), HasSubstr("d<|im_end|>")) << name;
    EXPECT_THAT(targets_of(name, row).front(), ::testing::StartsWith("a <|im_start|>assistant\nb<|im_end|>")) << name;
  }
}

// Earlier turns lose their reasoning; the last gets a think block, which the model is to write itself.
TEST(TextTargets, OfATemplateThatRewritesReasoning) {
  const Json row = messages_of({{"user", "a"},
                                {"assistant", "<think>\nhm\n</think>\n\nb"},
                                {"user", "c"},
                                {"assistant", "<think>\nwell\n</think>\n\nd"}});
  EXPECT_THAT(targets_of("thinking", row), ElementsAre("b<|im_end|>", "<think>\nwell\n</think>\n\nd<|im_end|>"));
  EXPECT_THAT(targets_of("thinking", kTwoAnswers),
              ElementsAre("Yes.<|im_end|>", "<think>\n\n</think>\n\nNo.<|im_end|>"));
  const Json fields = {{"messages",
                        {{{"role", "user"}, {"content", "a"}},
                         {{"role", "assistant"}, {"reasoning_content", "hm"}, {"content", "  b "}}}}};
  EXPECT_THAT(targets_of("thinking", fields), ElementsAre("<think>\nhm\n</think>\n\n  b <|im_end|>"));
}

const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "get", "parameters": {}}}])");
const Json kCalls = Json::parse(R"([{"role": "user", "content": "Weather?"},
    {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "get", "arguments": {"a": 1}}}]},
    {"role": "tool", "content": "rain"}, {"role": "assistant", "content": "Wet."},
    {"role": "user", "content": "Oh"}, {"role": "assistant", "content": "Yes."}])");

TEST(TextTargets, IncludeToolCalls) {
  const Json row = {{"messages", kCalls}, {"tools", kTools}};
  EXPECT_THAT(targets_of("thinking", row),
              ElementsAre("<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>",
                          "Wet.<|im_end|>", "<think>\n\n</think>\n\nYes.<|im_end|>"));
  EXPECT_THAT(targets_of("headers", row), ElementsAre("{\"name\": \"get\", \"parameters\": {\"a\": 1}}<|eot_id|>",
                                                      "Wet.<|eot_id|>", "Yes.<|eot_id|>"));
}

// Here a shorter conversation is not the beginning of a longer one, and a tool's answer needs a call before it.
TEST(TextTargets, OfATemplateThatPutsToolsBeforeTheLastQuestion) {
  EXPECT_THAT(targets_of("instructions", kTwoAnswers), ElementsAre(" Yes.<|im_end|>", " No.<|im_end|>"));
  EXPECT_THAT(targets_of("instructions", {{"messages", kCalls}}).size(), 3u);
  // With tools before a later question, no rendering tells where the first answer lies: said, not guessed.
  EXPECT_THAT(targets_of("instructions", {{"messages", kCalls}, {"tools", kTools}}),
              ElementsAre("error: messages[1]: cannot tell where the chat template puts this turn"));
  EXPECT_THAT(targets_of("instructions", {{"messages", kCalls}, {"tools", kTools}}, TargetTurns::last_assistant),
              ElementsAre(" Yes.<|im_end|>"));
}

TEST(TextTargets, OfATemplateWhosePromptOpensAThinkBlock) {
  const Json row =
      messages_of({{"user", "a"}, {"assistant", "<b"}, {"user", "c"}, {"assistant", "<think>\nd</think>e"}});
  EXPECT_THAT(targets_of("opened", row), ElementsAre("<b<|endoftext|>", "e<|endoftext|>"));
}

TEST(TextTargets, OfTemplatesThatMarkThem) {
  for (const char* name : {"marked", "marked_short"}) {
    EXPECT_THAT(targets_of(name, kTwoAnswers), ElementsAre("Yes.<|im_end|>", "No.<|im_end|>")) << name;
    EXPECT_THAT(targets_of(name, kTwoAnswers, TargetTurns::last_assistant), ElementsAre("No.<|im_end|>")) << name;
  }
}

TEST(TextTargets, OfATemplateThatClosesAWholeConversation) {
  const TestModel model(template_source("chatml") + "{% if not add_generation_prompt %}{{ pad_token }}{% endif %}");
  Text text(model.path());
  EXPECT_THAT(targets_of(text, kTwoAnswers, TargetTurns::all_assistant),
              ElementsAre("Yes.<|im_end|>", "No.<|im_end|>"));
}

TEST(TextTargets, OfATemplateThatJoinsNeighbours) {
  const Json row =
      messages_of({{"user", "a"}, {"assistant", "b"}, {"assistant", "c"}, {"user", "d"}, {"assistant", "e"}});
  EXPECT_THAT(targets_of("joined", row), ElementsAre("b\nc<|im_end|>", "e<|im_end|>"));
  EXPECT_THAT(targets_of("chatml", row), ElementsAre("b<|im_end|>", "c<|im_end|>", "e<|im_end|>"));
  EXPECT_THAT(targets_of("thinking", row).size(), 3u);
}

// The last token is a target since it has a character of the answer.
TEST(TextTargets, OfATemplateWithoutAnEnd) {
  const TestModel model(template_source("unended"));
  Text text(model.path());
  EXPECT_THAT(targets_of(text, kTwoAnswers, TargetTurns::all_assistant), ElementsAre("Yes.\n", "No.\n"));
  EXPECT_THAT(text.warnings(), ElementsAre(HasSubstr("no token that ends a turn")));
}

// A token that has a character of the answer is a target, though the prompt's end is in it too.
TEST(TextTargets, TakeATokenThatCrossesTheirBegin) {
  const TestModel model("{% for message in messages %}{{ message.content }}{% endfor %}");
  Text text(model.path());
  ASSERT_EQ(text.encode("Hello", false).size(), 1u);
  EXPECT_THAT(targets_of(text, messages_of({{"user", "a Hel"}, {"assistant", "lo there"}}), TargetTurns::all_assistant),
              ElementsAre(" Hello there"));
}

TEST(TextTargets, CountCharactersNotBytes) {
  const Json row = messages_of(
      {{"user", "😀日本e\u0301"}, {"assistant", "👩‍👩‍👧にñ"}, {"user", "é"}, {"assistant", "😀"}});
  for (const char* tokenizer : {"byte_level", "metaspace"}) {
    const TestModel model(template_source("chatml"), tokenizer);
    Text text(model.path());
    EXPECT_THAT(targets_of(text, row, TargetTurns::all_assistant),
                ElementsAre("👩‍👩‍👧にñ<|im_end|>", "😀<|im_end|>"));
  }
}

TEST(TextTargets, OfPromptAndCompletionAreThoseOfTheChat) {
  const Json row = {{"prompt", "Hello"}, {"completion", "Yes."}, {"tools", kTools}};
  for (const TargetTurns turns : {TargetTurns::all_assistant, TargetTurns::last_assistant}) {
    EXPECT_THAT(targets_of("chatml", row, turns), ElementsAre("Yes.<|im_end|>"));
  }
  const TestModel model(template_source("chatml"));
  Text text(model.path());
  const std::string renamed = R"({"q": "Hello", "a": "Yes."})",
                    chat = messages_of({{"user", "Hello"}, {"assistant", "Yes."}}).dump();
  const auto rows = text.tokenize({renamed, chat}, {.prompt = "q", .completion = "a"}, TargetTurns::all_assistant);
  EXPECT_EQ(rows[0].row.ids, rows[1].row.ids);
  EXPECT_EQ(rows[0].row.targets, rows[1].row.targets);
}

TEST(TextTargets, OfTextAreAllButTheFirstToken) {
  const TestModel model(template_source("chatml"));
  Text text(model.path());
  // The tokenizer adds the first token; the last is added unless the text has it.
  for (const char* row : {R"({"text": "Hello"})", R"({"text": "Hello<|im_end|>"})"}) {
    const RowResult result = text.tokenize({row}, {}, TargetTurns::all_tokens).at(0);
    EXPECT_EQ(text.decode(result.row.ids, false), "<|begin_of_text|>Hello<|im_end|>");
    EXPECT_THAT(result.row.targets, ElementsAre(0, 1, 1));
  }
  EXPECT_EQ(text.tokenize({R"({"text": "Hello"})"}, {}, TargetTurns::all_assistant).at(0).error,
            "text: a text row has no prompt to mask");
}

// --- Model directories
// ------------------------------------------------------------------------------------------------

TEST(TextModel, FindsItsTemplates) {
  const Json messages = messages_of({{"user", "x"}})["messages"];
  TestModel model("config");
  EXPECT_EQ(Text(model.path()).render(messages, nullptr, false), "config");

  model.config["chat_template"] = Json::parse(
      R"([{"name": "default", "template": "usual"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}])");
  model.write();
  EXPECT_EQ(Text(model.path()).render(messages, nullptr, false), "usual");
  EXPECT_EQ(Text(model.path()).render(messages, kTools, false), "1 tools");

  write_file(model / "chat_template.jinja", "file {{ bos_token }}");
  EXPECT_EQ(Text(model.path()).render(messages, kTools, false), "file <|begin_of_text|>");
  std::filesystem::create_directory(model / "additional_chat_templates");
  write_file(model / "additional_chat_templates/tool_use.jinja", "another");
  EXPECT_EQ(Text(model.path()).render(messages, nullptr, false), "file <|begin_of_text|>");
  EXPECT_EQ(Text(model.path()).render(messages, kTools, false), "another");

  TestModel old("");
  old.config.erase("chat_template");
  old.write();
  EXPECT_THAT(error_of([&] { Text(old.path()).render(messages, nullptr, false); }), HasSubstr("no chat template"));
  write_file(old / "chat_template.json", R"({"chat_template": "processor's"})");
  EXPECT_EQ(Text(old.path()).render(messages, nullptr, false), "processor's");
}

TEST(TextModel, KnowsWhereGenerationStops) {
  TestModel model(template_source("headers"));
  write_file(model / "config.json", R"({"eos_token_id": 3})");
  const Text plain(model.path(), kDate);
  const auto end = static_cast<int64_t>(Text(model.path()).encode("<|eot_id|>", false).at(0));
  const auto eos = static_cast<int64_t>(Text(model.path()).encode("<|im_end|>", false).at(0));
  EXPECT_THAT(plain.stop_ids(), ElementsAre(eos, 3, end));
  EXPECT_THAT(plain.warnings(),
              ElementsAre(HasSubstr("config.json: eos_token_id lacks"), HasSubstr("the date, 2024-02-29,")));
  EXPECT_EQ(plain.today(), kDate);

  model.generation["eos_token_id"] = {7, 8};
  model.write();
  const Text listed(model.path(), kDate);
  EXPECT_THAT(listed.stop_ids(), ElementsAre(eos, 3, 7, 8, end));
  EXPECT_THAT(listed.warnings().at(0), HasSubstr("generation_config.json: eos_token_id lacks"));
  model.generation["eos_token_id"] = {7, end};
  model.write();
  EXPECT_THAT(Text(model.path(), kDate).warnings(), ElementsAre(HasSubstr("the date")));

  model.generation["eos_token_id"] = "x";
  model.write();
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("generation_config.json: eos_token_id: is neither"));
}

TEST(TextModel, HasAFingerprintOfAllThatMakesTheTokens) {
  TestModel model(template_source("chatml"));
  const std::string first = Text(model.path()).fingerprint();
  EXPECT_EQ(Text(model.path()).fingerprint(), first);
  EXPECT_EQ(Text(model.path(), kDate).fingerprint(), first);  // this template writes no date
  model.config["pad_token"] = "<s>";
  model.write();
  const std::string second = Text(model.path()).fingerprint();
  EXPECT_NE(second, first);
  write_file(model / "chat_template.jinja", template_source("headers"));
  const std::string third = Text(model.path(), kDate).fingerprint();
  EXPECT_NE(third, second);
  EXPECT_NE(Text(model.path(), "2024-03-01").fingerprint(), third);
}

TEST(TextModel, WarnsOfWhatATemplateLeavesOut) {
  const TestModel model(template_source("chatml"));
  Text text(model.path());
  const std::string row = Json({{"messages", kCalls}, {"tools", kTools}}).dump();
  EXPECT_EQ(text.tokenize({row}, {}, TargetTurns::all_assistant).at(0).error, "");
  EXPECT_THAT(text.warnings(), ::testing::IsSupersetOf({HasSubstr("tool_calls, which the chat template leaves out"),
                                                        HasSubstr("tools, which the chat template leaves out")}));
}

// --- What goes wrong
// --------------------------------------------------------------------------------------------------

TEST(TextErrors, NameTheFile) {
  EXPECT_THAT(error_of([] { Text{"/nonexistent/model"}; }), HasSubstr("/nonexistent/model: no such directory"));
  TestModel model(template_source("chatml"));
  const auto whole = read_file(model / "tokenizer.json");
  std::filesystem::remove(model / "tokenizer.json");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("tokenizer.json: no such file"));
  write_file(model / "tokenizer.json", whole.substr(0, whole.size() / 2));
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("tokenizer.json: is not a tokenizer that"));
  write_file(model / "tokenizer.json", "{}");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("tokenizer.json: is not a tokenizer that"));
  write_file(model / "tokenizer.json", whole);
  write_file(model / "tokenizer_config.json", "[]");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("tokenizer_config.json: is not a JSON object"));
  write_file(model / "tokenizer_config.json", "\xff");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("tokenizer_config.json: is not UTF-8"));
  model.config["chat_template"] = "{% if %}";
  model.write();
  EXPECT_THAT(error_of([&] { Text{model.path()}; }),
              HasSubstr("tokenizer_config.json: chat template \"default\": line 1"));
  std::filesystem::create_directory(model / "additional_chat_templates");
  write_file(model / "additional_chat_templates/tool_use.jinja", "\n{{ }");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }),
              HasSubstr("additional_chat_templates/tool_use.jinja: chat template \"tool_use\": line 2"));
  write_file(model / "chat_template.jinja", "{{ }");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }),
              HasSubstr("/chat_template.jinja: chat template \"default\": line 1"));
  write_file(model / "tokenizer.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n");
  EXPECT_THAT(error_of([&] { Text{model.path()}; }), HasSubstr("tokenizer.json: is a Git LFS pointer"));
}

TEST(TextErrors, OfTextsThatAreNone) {
  const TestModel model(template_source("chatml"));
  Text text(model.path());
  EXPECT_EQ(error_of([&] { text.encode("\xff", false); }), "the text is not valid UTF-8");
  EXPECT_EQ(error_of([&] {
              text.render(messages_of({{"user", "\xff"}})["messages"], nullptr, true);
            }),
            "the text is not valid UTF-8");
  // A model's embedding may have rows that the tokenizer knows nothing of.
  const auto hello = text.encode("Hello", false);
  EXPECT_EQ(text.decode({hello.at(0), static_cast<int32_t>(text.vocabulary()) + 5, hello.at(0)}), "HelloHello");
  EXPECT_THAT(error_of([&] { text.decode({-1}); }), HasSubstr("-1 is no token id"));
}

TEST(TextErrors, OfTemplatesDoNotQuoteRows) {
  const TestModel model(
      "{% if messages[0].content == 'a' %}{{ raise_exception('No a, please') }}{% endif %}"
      "{% if messages[0].content == 'b' %}{{ messages[0].missing.more }}{% endif %}"
      "{% if messages[0].content == 'c' %}{{ 'x' + messages[0].number }}{% endif %}"
      "{{ raise_exception('secret: ' ~ messages[0].content) }}");
  Text text(model.path());
  const auto error_for = [&](const std::string& content) {
    const std::string row = Json({{"messages", {{{"role", "user"}, {"content", content}, {"number", 3}}}}}).dump();
    return text.tokenize({row}, {}, TargetTurns::all_tokens).at(0).error;
  };
  EXPECT_EQ(error_for("a"), "messages: the chat template refuses it: No a, please");
  EXPECT_THAT(error_for("b"), HasSubstr("needs something that is missing: 'dict object' has no attribute 'missing'"));
  EXPECT_THAT(error_for("c"), HasSubstr("the chat template fails: can only concatenate str (not \"int\") to str"));
  EXPECT_EQ(error_for("private words"), "messages: the chat template refuses it");
  // A row's error leaves the others and the child alone.
  EXPECT_EQ(text.encode("Hello", false).size(), 1u);
}

// The interpreter is a setting, which is read once: these cases run in processes of their own.
struct ChildRun {
  int code;
  std::string output;
};

ChildRun run_with_python(const std::string& python, const std::filesystem::path& model) {
  const TestFolder folder;
  ProcessOptions options;
  options.argv = {"/bin/sh", "-c",
                  fmt::format("exec {}/model_test --gtest_also_run_disabled_tests "
                              "--gtest_filter=TextErrors.DISABLED_UseTheModel > {} 2>&1",
                              TRUNKLINE_BINARY_DIR, (folder / "output").string())};
  options.environment = {{"TRUNKLINE_PYTHON", python}, {"TEXT_TEST_MODEL", model.string()}};
  Process process = Process::start(options);
  const auto status = process.wait(Deadline::after(std::chrono::seconds(60)));
  return {status ? status->code : -1, read_file(folder / "output")};
}

TEST(TextErrors, DISABLED_UseTheModel) {
  Text text(std::getenv("TEXT_TEST_MODEL"));
  std::this_thread::sleep_for(std::chrono::milliseconds(1200));
  text.encode("Hello", false);
}

TEST(TextErrors, OfThePythonProcessAreTold) {
  const TestModel model(template_source("chatml"));
  const TestFolder folder;
  const auto fake_python = [&](const std::string& script) {
    write_file(folder / "python", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(folder / "python", std::filesystem::perms::owner_all);
    return (folder / "python").string();
  };
  const std::string real = fmt::format("exec {} \"$@\"", TRUNKLINE_TEST_PYTHON);

  EXPECT_EQ(run_with_python(fake_python(real), model.path()).code, 0);
  EXPECT_THAT(run_with_python("/nonexistent/python", model.path()).output,
              HasSubstr("cannot start Python for the tokenizer: /nonexistent/python: no such program"));
  const ChildRun ended = run_with_python(fake_python("echo I am broken >&2; exit 3"), model.path());
  EXPECT_THAT(ended.output, HasSubstr("I am broken"));
  EXPECT_THAT(ended.output, HasSubstr("exited with code 3 while"));
  const ChildRun bare =
      run_with_python(fake_python(fmt::format("exec {} -S \"$@\"", TRUNKLINE_TEST_PYTHON)), model.path());
  EXPECT_THAT(bare.output, HasSubstr("install the Python packages tokenizers and jinja2"));
  const ChildRun killed = run_with_python(fake_python("(sleep 1; kill -9 $$) & " + real), model.path());
  EXPECT_NE(killed.code, 0);
  EXPECT_THAT(killed.output, HasSubstr("was killed by signal 9 (Killed) while tokenizing a text"));
}

}  // namespace
}  // namespace trunkline

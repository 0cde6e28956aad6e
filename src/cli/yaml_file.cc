#include "cli/yaml_file.h"

#include <yaml-cpp/eventhandler.h>

#include <sstream>
#include <string_view>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

// Whether the quoted text that begins at `begin` ends on its line.
bool is_closed(std::string_view text, size_t begin) {
  const char quote = text[begin];
  for (size_t at = begin + 1; at < text.size() && text[at] != '\n'; ++at) {
    if (quote == '"' && text[at] == '\\') {
      ++at;
    } else if (text[at] == quote) {
      if (quote == '"' || !text.substr(at + 1).starts_with('\'')) return true;
      ++at;  // '' is a quote within
    }
  }
  return false;
}

// Hears of every text as it is parsed, before what follows it.
class Quotes : public YAML::EventHandler {
 public:
  Quotes(const std::string& file, std::string_view text) : file_(file), text_(text) {}

  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t, const std::string&) override {
    auto begin = static_cast<size_t>(mark.pos);
    while (begin < text_.size() && (text_[begin] == '&' || text_[begin] == '!')) {  // an anchor or a tag comes first
      begin = text_.find_first_not_of(" \t", text_.find_first_of(" \t\n", begin));
    }
    if (begin >= text_.size() || (text_[begin] != '"' && text_[begin] != '\'') || is_closed(text_, begin)) return;
    fail(ErrorKind::input, "{}:{}: a quote begins on this line and is not closed on it", file_, mark.line + 1);
  }
  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  const std::string& file_;
  std::string_view text_;
};

std::string text_of(const std::string& file) {
  try {
    std::string text = read_file(file);
    if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // a byte order mark
    if (!text.ends_with('\n')) text += '\n';  // or yaml-cpp tells of a quote that the end leaves open, and not where
    return text;
  } catch (const Error& error) {
    fail(ErrorKind::input, "-c: {}", error.what());
  }
}

}  // namespace

YAML::Node read_yaml(const std::string& file) {
  const std::string text = text_of(file);
  try {
    Quotes quotes(file, text);
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(quotes)) {
    }
    const std::vector<YAML::Node> documents = YAML::LoadAll(text);
    if (documents.empty()) return YAML::Node(YAML::NodeType::Null);
    if (documents.size() > 1) {
      fail(ErrorKind::input, "{}:{}: a second document begins: a file of options is one", file,
           std::max(0, documents[1].Mark().line) + 1);
    }
    return documents.front();
  } catch (const YAML::Exception& error) {
    fail(ErrorKind::input, "{}:{}: {}", file, error.mark.line + 1, error.msg);
  }
}

}  // namespace trunkline

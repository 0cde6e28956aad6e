#include "model/text.h"

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/fail.h"
#include "base/process.h"
#include "base/settings.h"
#include "base/stream.h"

namespace trunkline {

// Made by CMake: the modules in text_child/ as one program, and the interpreter of the build's virtual environment.
extern const char kTextChildSource[];
extern const char kTextChildPython[];

namespace {

using Json = nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "ids and sizes go to the child as they lie in memory");

// How long the child may take. Loading a large tokenizer on a busy machine takes seconds, a row of megabytes too.
constexpr std::chrono::seconds kStart{120};
constexpr std::chrono::seconds kAnswer{300};
constexpr std::chrono::seconds kExit{2};

// The program comes first on standard input, cut short if this process is gone; then requests. An entry of sys.path
// that is empty means the current directory, whose files must not stand in for libraries.
constexpr const char* kBootstrap =
    "import sys; sys.path[:] = [path for path in sys.path if path]; size = int(sys.argv[1]); "
    "source = sys.stdin.buffer.read(size); len(source) == size or sys.exit(); "
    "space = {'__name__': 'text_child'}; exec(compile(source, 'text_child.py', 'exec'), space); "
    "space['main'](source.decode())";

const char* name_of(TargetTurns targets) {
  switch (targets) {
    case TargetTurns::all_tokens: return "all_tokens";
    case TargetTurns::all_assistant: return "all_assistant";
    case TargetTurns::last_assistant: return "last_assistant";
  }
  return "";
}

std::string dump(const Json& request) {
  try {
    return request.dump();
  } catch (const Json::type_error&) {
    fail(ErrorKind::input, "the text is not valid UTF-8");
  }
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

template <typename T>
std::vector<T> take(std::string_view& payload, size_t count) {
  std::vector<T> result(count);
  payload.copy(reinterpret_cast<char*>(result.data()), count * sizeof(T));
  payload.remove_prefix(count * sizeof(T));
  return result;
}

}  // namespace

struct Text::Impl {
  struct Reply {
    Json header;
    std::string payload;
  };

  std::string python = Settings::get().python.value_or(kTextChildPython);
  Json place;  // the model directory and the date, which every request repeats
  Process child;
  std::string fingerprint, today;
  std::vector<int64_t> stop_ids;
  int64_t vocabulary = 0;
  std::vector<std::string> warnings;

  Impl(const std::filesystem::path& directory, const std::string& date)
      : place({{"directory", directory.string()}, {"today", date}}), child(start()) {
    set_non_blocking(child.input.get());
    const Deadline deadline = Deadline::after(kStart);
    check(write_exactly(child.input.get(), bytes_of(kTextChildSource), deadline), "starting", kStart);
    const Json about = exchange({{"op", "about"}}, {}, "reading the tokenizer", kStart).header;
    fingerprint = about.at("fingerprint");
    stop_ids = about.at("stop_ids").get<std::vector<int64_t>>();
    today = about.at("today");
    vocabulary = about.at("vocabulary");
    warnings = about.at("warnings").get<std::vector<std::string>>();
  }

  Process start() const {
    ProcessOptions options;
    options.argv = {python, "-c", kBootstrap, std::to_string(std::strlen(kTextChildSource))};
    options.input = options.output = ProcessOptions::Stream::pipe;
    options.ignore_interrupt = true;  // a step that Ctrl-C lets finish may still need it; it ends with its input
    try {
      return Process::start(options);
    } catch (const Error& error) {
      fail(error.kind(),
           "cannot start Python for the tokenizer: {}. TRUNKLINE_PYTHON may name an interpreter that has the packages "
           "tokenizers and jinja2",
           error.what());
    }
  }

  // Throws if a transfer did not come to its end.
  void check(StreamEnd end, const char* doing, std::chrono::seconds limit) {
    if (end == StreamEnd::done) return;
    if (end == StreamEnd::late) {
      child.signal(9);
      fail(ErrorKind::timeout, "the tokenizer's process ({}) has not answered for {} s while {}", python, limit.count(),
           doing);
    }
    const auto status = child.wait(Deadline::after(kExit));
    fail(ErrorKind::system, "the tokenizer's process ({}) {} while {}; what it said is on standard error", python,
         status ? status->text() : "closed its output", doing);
  }

  Reply exchange(Json request, std::string_view payload, const char* doing, std::chrono::seconds limit = kAnswer) {
    request.update(place);
    const Deadline deadline = Deadline::after(limit);
    const std::string text = dump(request);
    std::array<uint64_t, 2> sizes{text.size(), payload.size()};
    check(write_exactly(child.input.get(), std::as_bytes(std::span(sizes)), deadline), doing, limit);
    check(write_exactly(child.input.get(), bytes_of(text), deadline), doing, limit);
    check(write_exactly(child.input.get(), bytes_of(payload), deadline), doing, limit);

    check(read_exactly(child.output.get(), std::as_writable_bytes(std::span(sizes)), deadline), doing, limit);
    std::string header(sizes[0], '\0');
    Reply reply{{}, std::string(sizes[1], '\0')};
    check(read_exactly(child.output.get(), std::as_writable_bytes(std::span(header)), deadline), doing, limit);
    check(read_exactly(child.output.get(), std::as_writable_bytes(std::span(reply.payload)), deadline), doing, limit);
    reply.header = Json::parse(header);
    if (const auto error = reply.header.find("error"); error != reply.header.end()) {
      fail(ErrorKind::input, "{}", error->get_ref<const std::string&>());
    }
    return reply;
  }
};

Text::Text(const std::filesystem::path& directory, const std::string& today)
    : impl_(std::make_unique<Impl>(directory, today)) {}
Text::~Text() = default;
Text::Text(Text&&) noexcept = default;
Text& Text::operator=(Text&&) noexcept = default;

std::string Text::render(const Json& messages, const Json& tools, bool add_generation_prompt) {
  return impl_
      ->exchange({{"op", "render"},
                  {"messages", messages},
                  {"tools", tools},
                  {"add_generation_prompt", add_generation_prompt}},
                 {}, "rendering a conversation")
      .payload;
}

std::vector<int32_t> Text::encode(const std::string& text, bool special) {
  const auto reply = impl_->exchange({{"op", "encode"}, {"special", special}}, text, "tokenizing a text");
  std::string_view payload = reply.payload;
  return take<int32_t>(payload, payload.size() / sizeof(int32_t));
}

std::string Text::decode(const std::vector<int32_t>& ids, bool skip_special) {
  const std::string_view payload(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t));
  return impl_->exchange({{"op", "decode"}, {"skip_special", skip_special}}, payload, "turning tokens into text")
      .payload;
}

std::vector<RowResult> Text::tokenize(const std::vector<std::string_view>& rows, const RowFields& fields,
                                      TargetTurns targets) {
  std::string payload;
  std::vector<size_t> sizes;
  for (const std::string_view row : rows) {
    payload += row;
    sizes.push_back(row.size());
  }
  const auto reply = impl_->exchange({{"op", "tokenize"},
                                      {"sizes", sizes},
                                      {"targets", name_of(targets)},
                                      {"fields",
                                       {{"text", fields.text},
                                        {"prompt", fields.prompt},
                                        {"completion", fields.completion},
                                        {"messages", fields.messages}}}},
                                     payload, "tokenizing rows");
  const auto lengths = reply.header.at("sizes").get<std::vector<size_t>>();
  const size_t tokens = std::accumulate(lengths.begin(), lengths.end(), size_t{0});
  std::string_view ids = reply.payload, marks = ids.substr(tokens * sizeof(int32_t));
  std::vector<RowResult> results;
  for (const size_t length : lengths) {
    results.push_back({{take<int32_t>(ids, length), take<uint8_t>(marks, length)}, {}});
  }
  for (const auto& [number, error] : reply.header.at("errors").items()) results.at(std::stoul(number)).error = error;
  impl_->warnings = reply.header.at("warnings").get<std::vector<std::string>>();
  return results;
}

const std::string& Text::fingerprint() const { return impl_->fingerprint; }
const std::vector<int64_t>& Text::stop_ids() const { return impl_->stop_ids; }
int64_t Text::vocabulary() const { return impl_->vocabulary; }
const std::string& Text::today() const { return impl_->today; }
const std::vector<std::string>& Text::warnings() const { return impl_->warnings; }

}  // namespace trunkline

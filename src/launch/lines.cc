#include "launch/lines.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

namespace trunkline {
namespace {

// Where to cut bytes that go on so that no character is cut: before the last one if it may be unfinished.
size_t whole_characters(std::string_view bytes) {
  const size_t last = bytes.size() - std::min<size_t>(bytes.size(), 3);
  for (size_t i = bytes.size(); i > last; --i) {
    const auto byte = static_cast<unsigned char>(bytes[i - 1]);
    if (byte < 0x80) break;                                 // ASCII: nothing is open
    if (byte >= 0xc0) return i > 1 ? i - 1 : bytes.size();  // a first byte
  }
  return bytes.size();
}

}  // namespace

void LineSplitter::add(std::string_view bytes, const Sink& sink) {
  while (!bytes.empty()) {
    if (after_return_ && bytes.front() == '\n') {
      after_return_ = false;
      bytes.remove_prefix(1);
      continue;
    }
    after_return_ = false;
    const size_t end = bytes.find_first_of("\n\r");
    append(bytes.substr(0, end), sink);
    if (end == std::string_view::npos) return;
    const bool is_return = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    if (is_return && line_.empty()) continue;
    sink(line_);
    line_.clear();
    after_return_ = is_return;
  }
}

void LineSplitter::append(std::string_view bytes, const Sink& sink) {
  while (line_.size() + bytes.size() > longest_) {
    const size_t room = longest_ - line_.size();
    line_.append(bytes.substr(0, room));
    bytes.remove_prefix(room);
    const size_t cut = whole_characters(line_);
    sink(std::string_view(line_).substr(0, cut));
    line_.erase(0, cut);
  }
  line_.append(bytes);
}

void LineSplitter::finish(const Sink& sink) {
  if (!line_.empty()) sink(line_);
  line_.clear();
  after_return_ = false;
}

void LineWriter::add(int fd, std::string line) {
  if (gone_.contains(fd)) return;
  size_ += line.size();
  lines_.push_back({fd, std::move(line)});
}

bool LineWriter::write_some() {
  // As many whole lines for one descriptor as fit one write; of a longer line, a part.
  const int to = fd();
  std::string bytes = lines_.front().text.substr(written_, PIPE_BUF);
  for (size_t next = 1; next < lines_.size() && lines_[next].fd == to; ++next) {
    if (bytes.size() + lines_[next].text.size() > PIPE_BUF) break;
    bytes += lines_[next].text;
  }
  const ssize_t size = ::write(to, bytes.data(), bytes.size());
  if (size < 0) {
    if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) return true;
    const int code = errno;
    give_up(to);
    errno = code;
    return false;
  }
  size_ -= static_cast<size_t>(size);
  written_ += static_cast<size_t>(size);
  while (!lines_.empty() && written_ >= lines_.front().text.size()) {
    written_ -= lines_.front().text.size();
    lines_.pop_front();
  }
  return true;
}

void LineWriter::give_up(int fd) {
  gone_.insert(fd);
  std::erase_if(lines_, [fd](const Line& line) { return line.fd == fd; });
  written_ = 0;  // the first line was one of them
  size_ = 0;
  for (const Line& line : lines_) size_ += line.text.size();
}

}  // namespace trunkline

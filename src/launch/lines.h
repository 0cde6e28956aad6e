// Ranks' output: cut into lines, and written on whole.
#pragma once

#include <deque>
#include <functional>
#include <set>
#include <string>
#include <string_view>

namespace trunkline {

// Cuts a stream of bytes into lines. A carriage return ends a line as a newline does, so that a progress bar comes out
// update by update; "\r\n" is one end, and a return with nothing before it is no line. Bytes are never changed, whether
// valid UTF-8 or not. A line longer than `longest` comes out in pieces, which do not cut a UTF-8 character in two.
class LineSplitter {
 public:
  using Sink = std::function<void(std::string_view line)>;  // without its end

  explicit LineSplitter(size_t longest = size_t{1} << 20) : longest_(longest) {}

  void add(std::string_view bytes, const Sink& sink);
  // The stream has ended: what it left without a newline is a line too.
  void finish(const Sink& sink);

 private:
  void append(std::string_view bytes, const Sink& sink);

  size_t longest_;
  std::string line_;
  bool after_return_ = false;
};

// Lines on their way out, to several descriptors in one order. Nothing here blocks: the owner polls fd() for writing
// and then calls write_some(). A line of at most PIPE_BUF bytes goes out by a single write.
class LineWriter {
 public:
  void add(int fd, std::string line);  // with its end
  bool empty() const { return lines_.empty(); }
  size_t size() const { return size_; }  // bytes that wait
  int fd() const { return lines_.front().fd; }
  // False when fd() takes no more, ever (its reader is gone, its disk is full): errno says why, and its lines are
  // dropped, now and later.
  bool write_some();

 private:
  struct Line {
    int fd;
    std::string text;
  };
  void give_up(int fd);

  std::deque<Line> lines_;
  size_t written_ = 0;  // of the first line
  size_t size_ = 0;
  std::set<int> gone_;
};

}  // namespace trunkline

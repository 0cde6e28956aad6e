#include "launch/lines.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <climits>
#include <csignal>

#include "base/fd.h"

namespace trunkline {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using namespace std::string_literals;

// The lines of a stream that comes in these pieces.
std::vector<std::string> lines_of(const std::vector<std::string>& pieces, size_t longest = 1000) {
  std::vector<std::string> lines;
  const auto sink = [&](std::string_view line) { lines.emplace_back(line); };
  LineSplitter splitter(longest);
  for (const std::string& piece : pieces) splitter.add(piece, sink);
  splitter.finish(sink);
  return lines;
}

TEST(LineSplitter, JoinsPiecesAndKeepsEmptyLines) {
  EXPECT_THAT(lines_of({"on", "e\n\ntw", "o", "\n"}), ElementsAre("one", "", "two"));
  EXPECT_THAT(lines_of({""}), IsEmpty());
}

TEST(LineSplitter, GivesALineAsSoonAsItEnds) {
  std::vector<std::string> lines;
  LineSplitter splitter;
  splitter.add("one\ntwo", [&](std::string_view line) { lines.emplace_back(line); });
  EXPECT_THAT(lines, ElementsAre("one"));
}

TEST(LineSplitter, GivesTheLastLineWithoutNewline) {
  EXPECT_THAT(lines_of({"one\n", "last"}), ElementsAre("one", "last"));
}

TEST(LineSplitter, TakesAReturnAsAnEnd) {
  EXPECT_THAT(lines_of({"\r 10%\r 20%", "\r 100%\n"}), ElementsAre(" 10%", " 20%", " 100%"));
  EXPECT_THAT(lines_of({"one\r\ntwo\r", "\nthree\r\n\r\nfour"}), ElementsAre("one", "two", "three", "", "four"));
  EXPECT_THAT(lines_of({"one\r", "\n", "\n"}), ElementsAre("one", ""));
}

TEST(LineSplitter, PassesAnyBytes) {
  EXPECT_THAT(lines_of({"\xff\xc3\n\0\x80 \x1b[0m\n"s}), ElementsAre("\xff\xc3", "\0\x80 \x1b[0m"s));
}

TEST(LineSplitter, CutsLongLines) {
  EXPECT_THAT(lines_of({"abcdefghij\nabcde\n"}, 5), ElementsAre("abcde", "fghij", "abcde"));
  EXPECT_THAT(lines_of({"abc", "de", "f", "\n"}, 5), ElementsAre("abcde", "f"));
}

TEST(LineSplitter, CutsNoCharacter) {
  // Two, three and four bytes a character.
  EXPECT_THAT(lines_of({"abcd\u00e9f\n"}, 5), ElementsAre("abcd", "\u00e9f"));
  EXPECT_THAT(lines_of({"abc\u20acd\n"}, 5), ElementsAre("abc", "\u20acd"));
  EXPECT_THAT(lines_of({"\U0001f600\U0001f600\n"}, 5), ElementsAre("\U0001f600", "\U0001f600"));
  EXPECT_THAT(lines_of({"\x80\x80\x80\x80\x80\x80\x80\n"}, 5), ElementsAre("\x80\x80\x80\x80\x80", "\x80\x80"));
}

std::string read_available(const Fd& fd) {
  std::string text(1 << 20, '\0');
  const ssize_t size = ::read(fd.get(), text.data(), text.size());
  return text.substr(0, static_cast<size_t>(std::max<ssize_t>(size, 0)));
}

TEST(LineWriter, WritesInOrderAndWhole) {
  Pipe out = make_pipe(), err = make_pipe();
  LineWriter writer;
  writer.add(out.write.get(), "one\n");
  writer.add(out.write.get(), "two\n");
  writer.add(err.write.get(), "three\n");
  EXPECT_EQ(writer.size(), 14u);
  EXPECT_TRUE(writer.write_some());
  EXPECT_EQ(read_available(out.read), "one\ntwo\n");
  EXPECT_EQ(writer.fd(), err.write.get());
  EXPECT_TRUE(writer.write_some());
  EXPECT_EQ(read_available(err.read), "three\n");
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(writer.size(), 0u);
}

TEST(LineWriter, WritesALongLineInParts) {
  Pipe out = make_pipe();
  LineWriter writer;
  std::string text;
  for (int i = 0; text.size() < 5 * PIPE_BUF; ++i) text += std::to_string(i);
  text += '\n';
  writer.add(out.write.get(), text);
  writer.add(out.write.get(), "next\n");
  std::string read;
  while (!writer.empty()) {
    ASSERT_TRUE(writer.write_some());
    read += read_available(out.read);
  }
  EXPECT_EQ(read, text + "next\n");
}

TEST(LineWriter, WaitsWhereThereIsNoRoom) {
  Pipe out = make_pipe();
  set_non_blocking(out.write.get());
  LineWriter writer;
  writer.add(out.write.get(), std::string(1 << 20, 'x') + "\n");
  size_t before;
  do {
    before = writer.size();
    ASSERT_TRUE(writer.write_some());
  } while (writer.size() < before);
  EXPECT_GT(writer.size(), 0u);
}

TEST(LineWriter, DropsLinesForAReaderThatIsGone) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe out = make_pipe(), err = make_pipe();
  out.read.reset();
  LineWriter writer;
  writer.add(out.write.get(), "lost\n");
  writer.add(err.write.get(), "kept\n");
  EXPECT_FALSE(writer.write_some());
  writer.add(out.write.get(), "lost too\n");
  EXPECT_EQ(writer.size(), 5u);
  EXPECT_TRUE(writer.write_some());
  EXPECT_TRUE(writer.empty());
  EXPECT_EQ(read_available(err.read), "kept\n");
}

}  // namespace
}  // namespace trunkline

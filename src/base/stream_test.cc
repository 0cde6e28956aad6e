#include "base/stream.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <vector>

#include "base/fd.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;

TEST(Stream, CarriesMoreThanAPipeHolds) {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.write.get());
  std::vector<std::byte> sent(1 << 20), got(1 << 20);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 31);
  std::thread writer([&] { EXPECT_EQ(write_exactly(pipe.write.get(), sent, Deadline::after(20s)), StreamEnd::done); });
  EXPECT_EQ(read_exactly(pipe.read.get(), got, Deadline::after(20s)), StreamEnd::done);
  writer.join();
  EXPECT_EQ(sent, got);
}

TEST(Stream, TellsACloseFromADelay) {
  Pipe pipe = make_pipe();
  set_non_blocking(pipe.write.get());
  std::vector<std::byte> bytes(1 << 20);
  EXPECT_EQ(read_exactly(pipe.read.get(), bytes, Deadline::after(10ms)), StreamEnd::late);
  EXPECT_EQ(write_exactly(pipe.write.get(), bytes, Deadline::after(10ms)), StreamEnd::late);
  pipe.read.reset();
  EXPECT_EQ(write_exactly(pipe.write.get(), bytes, Deadline::after(1s)), StreamEnd::closed);  // and lives on

  Pipe other = make_pipe();
  other.write.reset();
  EXPECT_EQ(read_exactly(other.read.get(), bytes, Deadline::after(1s)), StreamEnd::closed);
}

}  // namespace
}  // namespace trunkline

// More than 2^32 bytes in one message. Its buffers are the same memory over and over, so that they need little of it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "base/fail.h"
#include "comm/fabric_ranks_test.h"

namespace trunkline::testing {
namespace {

// `bytes` of address space that repeat one piece of memory.
class Repeated {
 public:
  static constexpr size_t kPiece = 32 << 20;

  explicit Repeated(size_t bytes) : bytes_((bytes + kPiece - 1) / kPiece * kPiece) {
    char name[] = "/tmp/trunkline_large_XXXXXX";
    const Fd file(::mkstemp(name));
    ::unlink(name);
    if (!file || ::ftruncate(file.get(), kPiece) != 0) fail_errno("a file for {}", bytes_);
    data_ = static_cast<std::byte*>(::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANON, -1, 0));
    if (data_ == MAP_FAILED) fail_errno("mmap of {}", bytes_);
    for (size_t offset = 0; offset < bytes_; offset += kPiece) {
      void* const place = ::mmap(data_ + offset, kPiece, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file.get(), 0);
      if (place == MAP_FAILED) fail_errno("mmap of a piece");
    }
  }
  ~Repeated() { ::munmap(data_, bytes_); }
  Repeated(const Repeated&) = delete;
  Repeated& operator=(const Repeated&) = delete;

  std::byte* data() { return data_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

class Large : public ::testing::TestWithParam<const char*> {};

TEST_P(Large, OffsetsBeyond32BitsArriveWhole) {
  if (GetParam() != nullptr && !kHasFabric) GTEST_SKIP() << "no emulated cables here";
  const Job job(2);
  std::optional<TestFabric> fabric;
  if (GetParam() != nullptr) fabric.emplace(GetParam(), 2);
  const Tweak tweak = [](Config& config) { config.lanes = 1; };
  auto ranks = start_processes(
      job,
      [](Group& group, const auto&) {
        const size_t count = (size_t{1} << 30) + 1025;  // of float32
        Repeated data(count * sizeof(float));
        auto* const floats = reinterpret_cast<float*>(data.data());
        const size_t piece = Repeated::kPiece / sizeof(float);
        if (group.rank() == 0) {
          for (size_t i = 0; i < piece; ++i) floats[i] = static_cast<float>(i);
        }
        group.broadcast(floats, count, Dtype::f32, 0);
        for (size_t i = 0; i < piece; ++i) {
          if (floats[i] != static_cast<float>(i)) throw std::runtime_error(fmt::format("{}: {}", i, floats[i]));
        }
        const auto cables = group.cables();
        uint64_t bytes = 0;
        for (const CableTraffic& cable : cables) bytes += group.rank() == 0 ? cable.bytes_sent : cable.bytes_received;
        if (bytes < count * sizeof(float)) throw std::runtime_error(fmt::format("{} bytes", bytes));
      },
      fabric ? fabric->tweak(tweak) : tweak);
  for (RankProcess& each : ranks) {
    const auto end = each.wait();
    EXPECT_EQ(end.code, 0) << end.error;
  }
}

INSTANTIATE_TEST_SUITE_P(, Large, ::testing::Values(static_cast<const char*>(nullptr), "2"),
                         [](const auto& test) { return test.param == nullptr ? "Tcp" : "Cables"; });

}  // namespace
}  // namespace trunkline::testing

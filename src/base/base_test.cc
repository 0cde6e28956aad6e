#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <numeric>

#include "base/crc32c.h"
#include "base/digest.h"
#include "base/fail.h"
#include "base/file.h"
#include "base/random.h"
#include "base/settings.h"
#include "trunkline/dtype.h"

namespace trunkline {
namespace {

// RFC 3720, appendix B.4.
TEST(Crc32c, MatchesTheSpecification) {
  std::array<unsigned char, 32> bytes{};
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), 0x8a9136aau);
  bytes.fill(0xff);
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), 0x62a8ab43u);
  std::iota(bytes.begin(), bytes.end(), static_cast<unsigned char>(0));
  EXPECT_EQ(crc32c(bytes.data(), bytes.size()), 0x46dd794eu);
}

TEST(Crc32c, GoesOnFromAnEarlierResult) {
  const std::string text = "one checksum, two parts";
  const uint32_t first = crc32c(text.data(), 7);
  EXPECT_EQ(crc32c(text.data() + 7, text.size() - 7, first), crc32c(text.data(), text.size()));
}

// RFC 7693's algorithm with a 32-byte result, as Python's hashlib computes it.
TEST(Digest, MatchesAnotherImplementation) {
  EXPECT_EQ(to_hex(digest_of("")), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
  EXPECT_EQ(to_hex(digest_of("abc")), "bddd813c634239723171ef3fee98579b94964e3bb1cb3e427262c8c068d52319");
}

TEST(Dtype, NamesReadBack) {
  for (Dtype dtype : kAllDtypes) EXPECT_EQ(dtype_from_name(name_of(dtype)), dtype);
  EXPECT_EQ(dtype_from_name("bf16"), Dtype::bf16);
  EXPECT_EQ(dtype_from_name("float8"), std::nullopt);
}

TEST(Random, IsTheSameSequenceForASeed) {
  Random a(7), b(7), c(8);
  const uint64_t first = a.next();
  EXPECT_EQ(first, b.next());
  EXPECT_NE(first, c.next());
  Random resumed(a.state());
  EXPECT_EQ(a.next(), resumed.next());
}

TEST(Random, ShuffleKeepsEveryItem) {
  std::array<int, 100> items{};
  std::iota(items.begin(), items.end(), 0);
  Random random(1);
  random.shuffle(std::span<int>(items));
  EXPECT_FALSE(std::is_sorted(items.begin(), items.end()));
  std::sort(items.begin(), items.end());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(items[static_cast<size_t>(i)], i);
}

TEST(Settings, NumbersAreCheckedWhole) {
  EXPECT_EQ(to_integer("X", "12", 0, 20), 12);
  for (const char* bad : {"", "x", "12x", "21", "-1", "1.5"}) EXPECT_THROW(to_integer("X", bad, 0, 20), Error) << bad;
}

TEST(File, WritesBesideAndReadsBack) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("trunkline-base-{}", ::getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  write_file(folder / "a", "first");
  write_file(folder / "a", "second");
  EXPECT_EQ(read_file(folder / "a"), "second");
  EXPECT_EQ(MappedFile(folder / "a").text(), "second");
  write_file(folder / "empty", "");
  EXPECT_EQ(MappedFile(folder / "empty").text(), "");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 2) << "nothing may be left beside";
  EXPECT_THROW(read_file(folder / "absent"), Error);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace trunkline

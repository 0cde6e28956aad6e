#include "fabric/channel.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "base/fd.h"
#include "base/random.h"

namespace trunkline {
namespace {

struct Fixture {
  Fixture() : file(::memfd_create("fabric", 0)) {
    const std::string text = to_json(wiring_from_spec("1", 2));
    EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    segment.emplace(file.get());
    channel = segment->channel(0, 0, 3);
  }
  Fd file;
  std::optional<Segment> segment;
  Channel channel;
};

Message header(uint32_t length, uint32_t source = 1, uint32_t destination = 2) {
  Message message{};
  message.length = length;
  message.source = source;
  message.destination = destination;
  return message;
}

std::vector<std::byte> pattern(size_t size, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.next());
  return bytes;
}

bool write(ChannelWriter& writer, const Message& message, std::span<const std::byte> bytes) {
  const std::span<const std::byte> parts[] = {bytes};
  return writer.write(message, parts);
}

std::vector<std::byte> read(ChannelReader& reader) {
  const Message* message = reader.front();
  EXPECT_NE(message, nullptr);
  if (message == nullptr) return {};
  std::vector<std::byte> bytes(message->length);
  const std::span<std::byte> parts[] = {bytes};
  reader.copy(*message, parts);
  EXPECT_TRUE(reader.pop());
  return bytes;
}

TEST(Channel, CarriesEverySize) {
  Fixture job;
  ChannelWriter writer(job.channel, 2);
  ChannelReader reader(job.channel, 1, 2);
  EXPECT_EQ(reader.front(), nullptr);
  for (const size_t size : {0, 1, 215, 216, 217, 16383, 16384, 16385, 65600, 5'000'000, 16 << 20}) {
    const auto bytes = pattern(size, size);
    ASSERT_TRUE(write(writer, header(static_cast<uint32_t>(size)), bytes)) << size;
    EXPECT_EQ(writer.unread(), 1u);
    EXPECT_EQ(read(reader), bytes) << size;
  }
}

TEST(Channel, GathersAndScatters) {
  Fixture job;
  ChannelWriter writer(job.channel, 2);
  ChannelReader reader(job.channel, 1, 2);
  const auto bytes = pattern(50'000, 5);
  const std::span<const std::byte> all(bytes);
  const std::span<const std::byte> parts[] = {all.first(7), all.subspan(7, 30'000), all.subspan(30'007)};
  ASSERT_TRUE(writer.write(header(50'000), parts));
  std::vector<std::byte> a(20'000), b(40'000);
  const std::span<std::byte> into[] = {a, b};
  reader.copy(*reader.front(), into);
  a.insert(a.end(), b.begin(), b.begin() + 30'000);
  EXPECT_EQ(a, bytes);
}

TEST(Channel, IsFullByMessagesAndByBytes) {
  Fixture job;
  ChannelWriter writer(job.channel, 2);
  ChannelReader reader(job.channel, 1, 2);
  size_t count = 0;
  while (write(writer, header(0), {})) ++count;
  EXPECT_EQ(count, job.channel.slots);
  EXPECT_GE(count, 4 * 63u);
  while (reader.front() != nullptr) reader.pop();
  const auto big = pattern(12 << 20, 1);
  count = 0;
  while (write(writer, header(12 << 20), big)) ++count;
  EXPECT_EQ(count, 2u);
  EXPECT_EQ(read(reader), big);
  EXPECT_TRUE(write(writer, header(12 << 20), big));
}

TEST(Channel, ReusesTheSameFewBlocks) {
  Fixture job;
  ChannelWriter writer(job.channel, 2);
  ChannelReader reader(job.channel, 1, 2);
  const auto bytes = pattern(65536, 2);
  uint16_t highest = 0;
  for (int i = 0; i < 5000; ++i) {
    ASSERT_TRUE(write(writer, header(65536), bytes));
    if (i % 2 == 0) continue;
    for (int n = 0; n < 2; ++n) {
      highest = std::max(highest, reader.front()->first_block);
      reader.pop();
    }
  }
  EXPECT_LT(highest, 64);
}

TEST(Channel, ANewWriterGoesOnWhereAKilledOneStopped) {
  Fixture job;
  const auto first = pattern(100'000, 1), second = pattern(70'000, 2);
  ChannelReader reader(job.channel, 1, 2);
  {
    ChannelWriter writer(job.channel, 2);
    ASSERT_TRUE(write(writer, header(100'000), first));
    ASSERT_TRUE(write(writer, header(100'000), first));
    EXPECT_EQ(read(reader), first);
  }
  ChannelWriter writer(job.channel, 2);
  ASSERT_TRUE(write(writer, header(70'000), second));
  EXPECT_EQ(read(reader), first) << "blocks of unread messages were not given away";
  EXPECT_EQ(read(reader), second);
}

TEST(Channel, AReaderDropsWhatWasForOthers) {
  Fixture job;
  ChannelWriter old(job.channel, 2);
  ChannelReader stale(job.channel, 1, 2);
  ASSERT_TRUE(write(old, header(0, 1, 2), {}));
  ASSERT_TRUE(write(old, header(5, 1, 2), pattern(5, 1)));
  const Message* seen = stale.front();
  ASSERT_NE(seen, nullptr);
  ChannelWriter writer(job.channel, 66);
  ChannelReader reader(job.channel, 65, 66);
  EXPECT_EQ(reader.front(), nullptr);
  ASSERT_TRUE(write(writer, header(3, 65, 66), pattern(3, 3)));
  EXPECT_EQ(read(reader), pattern(3, 3));
  EXPECT_FALSE(stale.pop()) << "was dropped by the new one";
  EXPECT_EQ(stale.front(), nullptr);
}

TEST(Channel, TwoThreadsKeepOrderAndBytes) {
  Fixture job;
  constexpr int kMessages = 3000;
  std::thread sender([&] {
    ChannelWriter writer(job.channel, 2);
    for (int i = 0; i < kMessages; ++i) {
      const size_t size = Random(static_cast<uint64_t>(i)).below(40'000);
      const auto bytes = pattern(size, static_cast<uint64_t>(i));
      while (!write(writer, header(static_cast<uint32_t>(size)), bytes)) std::this_thread::yield();
    }
  });
  ChannelReader reader(job.channel, 1, 2);
  int wrong = 0;
  for (int i = 0; i < kMessages; ++i) {
    while (reader.front() == nullptr) std::this_thread::yield();
    wrong += read(reader) != pattern(Random(static_cast<uint64_t>(i)).below(40'000), static_cast<uint64_t>(i));
  }
  sender.join();
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace trunkline

#include "train/row_cache.h"

#include <array>
#include <cstring>

#include "base/crc32c.h"
#include "base/fail.h"
#include "base/log.h"
#include "base/settings.h"

namespace trunkline {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'R', 'U', 'N', 'K', 'R', 'O', 'W'};
constexpr uint32_t kVersion = 2;

// The file: this, then offsets, target counts, ids, targets.
struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_crc = 0;  // of this header with 0 here
  uint32_t rows_crc = 0;    // of what follows it
  uint32_t reserved = 0;
  Digest key{};
  RowCounts counts;
};
static_assert(sizeof(Header) == 24 + 32 + 10 * 8, "no padding: the checksum covers every byte");

uint32_t crc_of(Header header) {
  header.header_crc = 0;
  return crc32c(&header, sizeof header);
}

// None where there is no place for it. XDG's rule: a relative path counts as unset.
std::optional<std::filesystem::path> cache_directory() {
  const Settings& settings = Settings::get();
  if (settings.cache_home && std::filesystem::path(*settings.cache_home).is_absolute()) {
    return std::filesystem::path(*settings.cache_home) / "trunkline";
  }
  if (settings.home) return std::filesystem::path(*settings.home) / ".cache" / "trunkline";
  return std::nullopt;
}

std::filesystem::path file_name(const Digest& key) { return to_hex(key).substr(0, 32) + ".rows"; }

void make_private_directory(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (!error && std::filesystem::create_directory(path, error)) {
    std::filesystem::permissions(path, std::filesystem::perms::owner_all, error);
  }
  if (error) fail(ErrorKind::system, "cannot make {}: {}", path.string(), error.message());
}

template <typename T>
void append(std::string& bytes, const std::vector<T>& values) {
  bytes.append(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string to_bytes(const Digest& key, const RowArrays& rows) {
  std::string bytes(sizeof(Header), '\0');
  append(bytes, rows.offsets);
  append(bytes, rows.target_counts);
  append(bytes, rows.ids);
  append(bytes, rows.targets);
  Header header;
  header.key = key;
  header.counts = rows.counts;
  header.rows_crc = crc32c(bytes.data() + sizeof header, bytes.size() - sizeof header);
  header.header_crc = crc_of(header);
  std::memcpy(bytes.data(), &header, sizeof header);
  return bytes;
}

}  // namespace

void CachedRows::read(std::string_view bytes, const Digest& key) {
  Header header;
  if (bytes.size() < sizeof header) fail(ErrorKind::input, "it is cut off");
  std::memcpy(&header, bytes.data(), sizeof header);
  if (header.magic != kMagic || header.version != kVersion) fail(ErrorKind::input, "it is of another format");
  if (header.header_crc != crc_of(header)) fail(ErrorKind::input, "its header is damaged");
  if (header.key != key) fail(ErrorKind::input, "it belongs to other data");
  counts = header.counts;
  const auto rows = static_cast<size_t>(counts.rows), tokens = static_cast<size_t>(counts.tokens);
  if (bytes.size() != sizeof header + (2 * rows + 1) * sizeof(int64_t) + tokens * (sizeof(int32_t) + 1)) {
    fail(ErrorKind::input, "it is cut off");
  }
  checksum = crc32c(bytes.data() + sizeof header, bytes.size() - sizeof header);
  if (checksum != header.rows_crc) fail(ErrorKind::input, "its rows are damaged");

  // The header's size keeps what follows aligned; the bytes begin at a page, or as memory is allocated.
  const char* at = bytes.data() + sizeof header;
  offsets = {reinterpret_cast<const int64_t*>(at), rows + 1};
  target_counts = {offsets.data() + rows + 1, rows};
  ids = {reinterpret_cast<const int32_t*>(target_counts.data() + rows), tokens};
  targets = {reinterpret_cast<const uint8_t*>(ids.data() + tokens), tokens};
}

std::optional<CachedRows> CachedRows::find(const Digest& key) {
  const auto directory = cache_directory();
  std::error_code error;
  if (!directory || !std::filesystem::exists(*directory / file_name(key), error)) return std::nullopt;
  const auto path = *directory / file_name(key);
  CachedRows result;
  try {
    result.file_ = std::make_unique<MappedFile>(path);
    result.read(result.file_->text(), key);
  } catch (const Error& fault) {
    spdlog::warn("the cache of tokenized rows {} is made anew: {}", path.string(), fault.what());
    return std::nullopt;
  }
  return result;
}

CachedRows CachedRows::keep(const Digest& key, const RowArrays& rows) {
  CachedRows result;
  std::string bytes = to_bytes(key, rows);
  try {
    const auto directory = cache_directory();
    if (!directory) fail(ErrorKind::system, "neither XDG_CACHE_HOME nor HOME is set");
    make_private_directory(*directory);
    const auto path = *directory / file_name(key);
    write_file(path, bytes, 0600);
    result.file_ = std::make_unique<MappedFile>(path);
    result.read(result.file_->text(), key);
  } catch (const Error& fault) {
    spdlog::warn("tokenized rows are kept in memory and made anew next time, since they cannot be cached: {}",
                 fault.what());
    result.file_.reset();
    result.memory_ = std::make_unique<std::string>(std::move(bytes));
    result.read(*result.memory_, key);
  }
  return result;
}

}  // namespace trunkline

// Files: read whole, written beside and renamed, mapped.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace trunkline {

// Throws Error(system) naming the path.
std::string read_file(const std::filesystem::path& path);

// Writes to a file beside `path`, syncs it and renames it over `path`: readers see the old bytes or the new ones.
void write_file(const std::filesystem::path& path, std::string_view bytes);

// Flushes a directory's entries (after a rename in it) or a file's bytes to the disk.
void sync_path(const std::filesystem::path& path);

// Renames directory `from` to `to`, both synced; `to` must not exist.
void rename_directory(const std::filesystem::path& from, const std::filesystem::path& to);

// A file mapped read-only for as long as this lives.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace trunkline

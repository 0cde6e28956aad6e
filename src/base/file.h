// Files: read whole, written beside and renamed, mapped.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace trunkline {

// Throws Error(system) naming the path.
std::string read_file(const std::filesystem::path& path);

// Writes to a file beside `path`, syncs it and renames it over `path`: readers see the old bytes or the new ones.
// `mode` is what a new file's permissions may be, as in open(2).
void write_file(const std::filesystem::path& path, std::string_view bytes, unsigned mode = 0666);

// Whether `path` is a regular file that may be written over by a program whose own such files begin with one of
// `beginnings`: it is one of them, or empty.
bool may_be_replaced(const std::filesystem::path& path, std::initializer_list<std::string_view> beginnings);

// Throws Error(input) unless write_file to `path` would lose nothing and can be expected to work: the folder takes
// files, and there is nothing under that name, or a file that may_be_replaced. What is neither, a link or a device too,
// a rename would put an end to. Leaves everything as it is. `what`: a file of the kind, for the message.
void require_output_path(const std::filesystem::path& path, std::initializer_list<std::string_view> beginnings,
                         std::string_view what);

// Makes the directory, and those above it, if need be; whether it did. Throws Error(system) naming what is in the way.
bool make_directories(const std::filesystem::path& path);

// Throws Error(input) if `bytes`, the beginning of what is there, are a pointer to the file that Git LFS has elsewhere.
void require_content(const std::filesystem::path& path, std::string_view bytes);

// A file written piece by piece, under the same promise as write_file: it appears under its name at commit(), whole and
// synced; without commit nothing is left.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path, unsigned mode = 0666);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void append(std::string_view bytes);
  void commit();

 private:
  std::filesystem::path path_, beside_;
  int fd_ = -1;
};

// A file read at any offset.
class InputFile {
 public:
  explicit InputFile(std::filesystem::path path);
  ~InputFile();
  InputFile(InputFile&& other) noexcept;
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  uint64_t size() const { return size_; }
  // Fills `data` with the `size` bytes from `offset` on; an end of file before that is an error.
  void read_at(uint64_t offset, void* data, size_t size) const;

 private:
  std::filesystem::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
};

// Flushes a directory's entries (after a rename in it) or a file's bytes to the disk.
void sync_path(const std::filesystem::path& path);

// Renames directory `from` to `to`, both synced; `to` must not exist, or be an empty directory.
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

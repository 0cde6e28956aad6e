#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <utility>

#include "base/fail.h"

namespace trunkline {
namespace {

// A descriptor that is closed when it goes out of scope.
struct Descriptor {
  int value;
  ~Descriptor() {
    if (value >= 0) ::close(value);
  }
};

Descriptor open_or_fail(const std::filesystem::path& path, int flags, mode_t mode = 0) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, mode);
  if (fd < 0) fail_errno("cannot open {}", path.string());
  return {fd};
}

}  // namespace

std::string read_file(const std::filesystem::path& path) {
  const Descriptor file = open_or_fail(path, O_RDONLY);
  std::string bytes;
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(file.value, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read {}", path.string());
    if (got == 0) return bytes;
    bytes.append(buffer, static_cast<size_t>(got));
  }
}

void write_file(const std::filesystem::path& path, std::string_view bytes, unsigned mode) {
  OutputFile file(path, mode);
  file.append(bytes);
  file.commit();
}

bool may_be_replaced(const std::filesystem::path& path, std::initializer_list<std::string_view> beginnings) {
  if (!std::filesystem::is_regular_file(std::filesystem::symlink_status(path))) return false;
  const MappedFile file(path);
  return file.text().empty() || std::ranges::any_of(beginnings, [&](std::string_view beginning) {
           return file.text().starts_with(beginning);
         });
}

void require_output_path(const std::filesystem::path& path, std::initializer_list<std::string_view> beginnings,
                         std::string_view what) {
  if (path.filename().empty()) fail(ErrorKind::input, "\"{}\" does not name a file", path.string());
  try {
    if (std::filesystem::exists(std::filesystem::symlink_status(path)) && !may_be_replaced(path, beginnings)) {
      fail(ErrorKind::input, "{} is there already and is not {}: name another file, or remove it", path.string(), what);
    }
    const OutputFile probe(path);
  } catch (const std::filesystem::filesystem_error& error) {
    fail(ErrorKind::input, "cannot write {}: {}", path.string(), error.code().message());
  } catch (const Error& error) {
    fail(ErrorKind::input, "{}", error.what());
  }
}

bool make_directories(const std::filesystem::path& path) {
  try {
    return std::filesystem::create_directories(path);
  } catch (const std::filesystem::filesystem_error& error) {
    fail(ErrorKind::system, "cannot make the directory {}: {}", error.path1().string(), error.code().message());
  }
}

void require_content(const std::filesystem::path& path, std::string_view bytes) {
  if (!bytes.starts_with("version https://git-lfs.github.com/spec/")) return;
  fail(ErrorKind::input, "{}: is a Git LFS pointer, not the file itself: fetch that with `git lfs pull`",
       path.string());
}

OutputFile::OutputFile(std::filesystem::path path, unsigned mode) : path_(std::move(path)), beside_(path_) {
  static std::atomic<int> count = 0;  // other threads may write the same file
  beside_ += fmt::format(".{}-{}.part", ::getpid(), ++count);
  fd_ = ::open(beside_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, static_cast<mode_t>(mode));
  if (fd_ < 0) fail_errno("cannot write {}", path_.string());
}

OutputFile::~OutputFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  ::unlink(beside_.c_str());
}

void OutputFile::append(std::string_view bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t put = ::write(fd_, bytes.data() + done, bytes.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("cannot write {}", path_.string());
    done += static_cast<size_t>(put);
  }
}

void OutputFile::commit() {
  if (::fsync(fd_) != 0) fail_errno("cannot sync {}", path_.string());
  if (::rename(beside_.c_str(), path_.c_str()) != 0) {
    fail_errno("cannot rename {} to {}", beside_.string(), path_.string());
  }
  ::close(std::exchange(fd_, -1));
  sync_path(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
}

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
  Descriptor file = open_or_fail(path_, O_RDONLY);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail_errno("cannot stat {}", path_.string());
  size_ = static_cast<uint64_t>(status.st_size);
  fd_ = std::exchange(file.value, -1);
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

void InputFile::read_at(uint64_t offset, void* data, size_t size) const {
  auto* to = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = ::pread(fd_, to, std::min(size, size_t{1} << 30), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail_errno("cannot read {}", path_.string());
    if (got == 0) fail(ErrorKind::input, "{}: ends at byte {}", path_.string(), offset);
    to += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<size_t>(got);
  }
}

void sync_path(const std::filesystem::path& path) {
  const Descriptor file = open_or_fail(path, O_RDONLY);
  if (::fsync(file.value) != 0) fail_errno("cannot sync {}", path.string());
}

void rename_directory(const std::filesystem::path& from, const std::filesystem::path& to) {
  sync_path(from);
  if (::rename(from.c_str(), to.c_str()) != 0) fail_errno("cannot rename {} to {}", from.string(), to.string());
  sync_path(to.has_parent_path() ? to.parent_path() : std::filesystem::path("."));
}

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file = open_or_fail(path, O_RDONLY);
  struct stat status {};
  if (::fstat(file.value, &status) != 0) fail_errno("cannot stat {}", path.string());
  size_ = static_cast<size_t>(status.st_size);
  if (size_ == 0) return;  // mmap refuses a length of zero
  void* mapped = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.value, 0);
  if (mapped == MAP_FAILED) fail_errno("cannot map {}", path.string());
  data_ = static_cast<const std::byte*>(mapped);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

}  // namespace trunkline

#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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

void write_file(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::path beside = path;
  beside += fmt::format(".{}.part", ::getpid());
  {
    const Descriptor file = open_or_fail(beside, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t put = ::write(file.value, bytes.data() + done, bytes.size() - done);
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) {
        const int code = errno;
        ::unlink(beside.c_str());
        errno = code;
        fail_errno("cannot write {}", path.string());
      }
      done += static_cast<size_t>(put);
    }
    if (::fsync(file.value) != 0) fail_errno("cannot sync {}", beside.string());
  }
  if (::rename(beside.c_str(), path.c_str()) != 0) fail_errno("cannot rename {} to {}", beside.string(), path.string());
  sync_path(path.has_parent_path() ? path.parent_path() : std::filesystem::path("."));
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

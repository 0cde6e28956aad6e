#include "base/directory_lock.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

std::string this_process() {
  char host[256] = "";
  if (::gethostname(host, sizeof host - 1) != 0) fail_errno("gethostname");
  return fmt::format("process {} on {}", ::getpid(), host);
}

std::string text_of(int fd) {
  char text[512];
  const ssize_t size = ::pread(fd, text, sizeof text, 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "a process that has not written its name yet";
}

// Whether `fd` still is the file at `path`: its last holder may have removed it meanwhile.
bool is_there(int fd, const fs::path& path) {
  struct stat held {
  }, there{};
  return fd >= 0 && ::fstat(fd, &held) == 0 && ::stat(path.c_str(), &there) == 0 && held.st_ino == there.st_ino &&
         held.st_dev == there.st_dev;
}

}  // namespace

DirectoryLock::DirectoryLock(fs::path directory, const std::string& option)
    : directory_(std::move(directory)), option_(option) {
  try {
    take();
  } catch (const Error& error) {
    std::error_code ignored;
    if (made_) fs::remove(directory_, ignored);
    fail(error.kind(), "{}: {}", option, error.what());
  }
}

void DirectoryLock::take() {
  const fs::path path = directory_ / kFile;
  do {
    made_ = make_directories(directory_);
    const int opened = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0 && errno == ENOENT) continue;  // its last holder has just removed it
    if (opened < 0) fail_errno("cannot open {}", directory_.string());
    opened_ = Fd(opened);
    const int file = ::openat(opened, kFile, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 && errno == ENOENT) continue;
    if (file < 0) fail_errno("cannot write {}", path.string());
    file_ = Fd(file);
    if (::flock(file_.get(), LOCK_EX | LOCK_NB) == 0) continue;
    if (errno != EWOULDBLOCK) fail_errno("cannot lock {}, by which runs keep out of each other's way", path.string());
    fail(ErrorKind::input, "{} is in use by another run, {}: wait for its end, or name another directory",
         directory_.string(), text_of(file_.get()));
  } while (!is_there(file_.get(), path));
  const std::string text = this_process();
  if (::ftruncate(file_.get(), 0) != 0 ||
      ::pwrite(file_.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    const int why = errno;
    ::unlinkat(opened_.get(), kFile, 0);
    errno = why;
    fail_errno("cannot write {}", path.string());
  }
}

void DirectoryLock::require() const {
  if (is_there(opened_.get(), directory_)) return;
  fail(ErrorKind::input, "{}: {} was removed, renamed or replaced while this run was writing to it", option_,
       directory_.string());
}

DirectoryLock::~DirectoryLock() {
  ::unlinkat(opened_.get(), kFile, 0);  // while it is locked: nobody else holds this very file
  file_.reset();
  std::error_code ignored;
  if (made_) fs::remove(directory_, ignored);  // if it is empty
}

}  // namespace trunkline

#include "base/directory_lock.h"

#include <gmock/gmock.h>

#include <optional>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class DirectoryLockTest : public ::testing::Test {
 protected:
  ~DirectoryLockTest() override { fs::remove_all(folder_); }
  std::string refusal() const {
    try {
      const DirectoryLock lock(output_, "--output");
      return "none";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::input);
      return error.what();
    }
  }

  const fs::path folder_ = fs::temp_directory_path() / fmt::format("trunkline-directory-lock-{}", ::getpid());
  const fs::path output_ = folder_ / "out";
};

TEST_F(DirectoryLockTest, OneHasItAtATime) {
  std::optional<DirectoryLock> first;
  first.emplace(output_, "--output");
  EXPECT_THAT(refusal(),
              AllOf(HasSubstr(output_.string() + " is in use"), HasSubstr(fmt::format("process {} on ", ::getpid()))));
  EXPECT_TRUE(fs::exists(output_ / ".lock"));  // the refused one took nothing away
  first.reset();
  EXPECT_FALSE(fs::exists(output_));  // it was made, and stayed empty
  EXPECT_EQ(refusal(), "none");
}

TEST_F(DirectoryLockTest, TellsWhenTheDirectoryIsAnother) {
  const DirectoryLock lock(output_, "--output");
  lock.require();
  const auto said = [&]() -> std::string {
    try {
      lock.require();
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  fs::rename(output_, folder_ / "elsewhere");
  EXPECT_THAT(said(), AllOf(StartsWith("--output: " + output_.string()), HasSubstr("removed, renamed or replaced")));
  fs::create_directories(output_);
  EXPECT_THAT(said(), HasSubstr("removed, renamed or replaced"));
  fs::remove(output_);
  fs::rename(folder_ / "elsewhere", output_);
  EXPECT_EQ(said(), "none");
}

TEST_F(DirectoryLockTest, WhatWasPutThereStays) {
  {
    const DirectoryLock lock(output_, "--output");
    write_file(output_ / "settings.yaml", "seed: 1\n");
  }
  EXPECT_TRUE(fs::exists(output_ / "settings.yaml"));
  EXPECT_FALSE(fs::exists(output_ / ".lock"));
}

TEST_F(DirectoryLockTest, GoesWithARenamedDirectory) {
  const fs::path renamed = folder_ / "renamed";
  {
    const DirectoryLock lock(output_, "--output");
    write_file(output_ / "made", "");
    fs::rename(output_, renamed);
    const DirectoryLock next(output_, "--output");  // the name is free
    EXPECT_TRUE(fs::exists(output_ / ".lock"));
  }
  EXPECT_FALSE(fs::exists(output_));
  EXPECT_TRUE(fs::exists(renamed / "made"));
  EXPECT_FALSE(fs::exists(renamed / ".lock"));
}

// What cannot be made or written is said with the option that named it, and nothing is left.
TEST_F(DirectoryLockTest, WhatCannotBeTakenIsNamed) {
  const auto error_of = [](const fs::path& path) {
    try {
      const DirectoryLock lock(path, "--output");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::system);
      return std::string(error.what());
    }
    return std::string("none");
  };
  fs::create_directories(folder_);
  write_file(folder_ / "file", "");
  EXPECT_THAT(error_of(folder_ / "file" / "out"),
              AllOf(StartsWith("--output: cannot make the directory " + (folder_ / "file" / "out").string() + ": "),
                    HasSubstr("Not a directory")));
  fs::create_directories(output_ / ".lock");
  EXPECT_EQ(error_of(output_), "--output: cannot write " + (output_ / ".lock").string() + ": Is a directory");
}

TEST_F(DirectoryLockTest, AKilledRunsFileIsNoLock) {
  fs::create_directories(output_);
  write_file(output_ / ".lock",
             "process 1 on a host that is gone, with a longer name than this one has, to be sure of it");
  {
    const DirectoryLock lock(output_, "--output");
    EXPECT_THAT(refusal(), HasSubstr(fmt::format("another run, process {} on ", ::getpid())));
  }
  EXPECT_TRUE(fs::exists(output_));  // it was there before
}

}  // namespace
}  // namespace trunkline

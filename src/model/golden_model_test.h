// What tests of this folder share: golden checkpoints and a folder to change them in.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <random>
#include <string>

#include "base/file.h"
#include "model/checkpoint.h"
#include "trunkline/error.h"

namespace trunkline::testing_model {

namespace fs = std::filesystem;

inline fs::path golden_model(const std::string& name) {
  return fs::path(TRUNKLINE_SOURCE_DIR) / "tests/golden" / name / "model";
}

// A new folder, gone when the test ends.
class TestFolder {
 public:
  TestFolder() : path_(fs::temp_directory_path() / fmt::format("trunkline_model_{:08x}", std::random_device()())) {
    fs::create_directories(path_);
  }
  ~TestFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  fs::path operator/(const std::string& name) const { return path_ / name; }

  // A copy of a golden checkpoint, to be changed.
  fs::path model(const std::string& name) const {
    fs::copy(golden_model(name), path_ / "model", fs::copy_options::recursive);
    return path_ / "model";
  }

 private:
  fs::path path_;
};

// The message of the Error that `call` throws.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

inline bool same_bits(const mx::array& a, const mx::array& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && mx::array_equal(a, b).item<bool>();
}

}  // namespace trunkline::testing_model

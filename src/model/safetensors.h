// Safetensors files: 8 bytes of header length, a JSON header, the tensors' bytes (github.com/huggingface/safetensors).
// Read and written here rather than by MLX so that a damaged file is told by name before anything is computed, the same
// tensors always give the same bytes, and a file is written without a second copy of its tensors in memory.
#pragma once

#include <mlx/mlx.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"

namespace trunkline {

namespace mx = mlx::core;

struct StoredTensor {
  std::string dtype;  // as the header spells it: F32, BF16, F8_E4M3, ...
  std::vector<int64_t> dims;
  uint64_t begin = 0, end = 0;  // bytes, from the start of the file
};

class SafetensorsFile {
 public:
  // Reads and checks the header: throws Error(input) naming the file if it is truncated or damaged.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

  // Throws Error(input) if there is no such tensor, Error(unsupported) if MLX lacks its dtype.
  mx::array load(const std::string& name) const;

 private:
  InputFile file_;
  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::string> metadata_;
};

// `value` in `dtype`. Throws Error(numeric) naming the tensor where numbers of it are too large for that.
mx::array converted(const std::string& name, const mx::array& value, mx::Dtype dtype);

// A tensor to write in `dtype`, to which it is converted when its turn comes.
struct NamedTensor {
  std::string name;
  mx::array value;
  mx::Dtype dtype;
};

// Written beside and renamed. The order in the file: wide dtypes first (so that all are aligned), else as given.
void write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

}  // namespace trunkline

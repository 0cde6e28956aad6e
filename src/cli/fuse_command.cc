#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/directory_lock.h"
#include "base/fail.h"
#include "base/file.h"
#include "cli/command.h"
#include "model/adapter.h"
#include "model/fuse.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

struct FuseRequest {
  fs::path model, adapter, output;
  std::string dtype;
};

std::optional<mx::Dtype> dtype_of(const std::string& name) {
  if (name == "float32") return mx::float32;
  if (name == "float16") return mx::float16;
  if (name == "bfloat16") return mx::bfloat16;
  return std::nullopt;
}

// OUTPUT, which appears under its name at commit(), whole; until then it is made beside it, by one process at a time,
// and without commit nothing is left. What a killed process left there goes.
class NewDirectory {
 public:
  explicit NewDirectory(const fs::path& path) : path_((fs::absolute(path) / "").lexically_normal().parent_path()) {
    require_new(path);
    // An empty directory that is there already may be a link to where there is room.
    if (fs::exists(path_)) path_ = fs::canonical(path_);
    beside_ = path_.parent_path() / (path_.filename().string() + ".partial");
    lock_.emplace(beside_, "--output " + path.string());
    require_new(path);  // the process that had it may have come to its end just now
    if (const std::error_code error = clear()) {
      fail(ErrorKind::system, "--output: what a process left in {} cannot be removed: {}", beside_.string(),
           error.message());
    }
  }
  ~NewDirectory() {
    std::error_code ignored;  // the next process tries again
    if (!committed_) ignored = clear();
    lock_.reset();
    fs::remove(beside_, ignored);  // if it is empty: another process may have it now
  }
  NewDirectory(const NewDirectory&) = delete;
  NewDirectory& operator=(const NewDirectory&) = delete;

  const fs::path& beside() const { return beside_; }
  void commit() {
    rename_directory(beside_, path_);  // over an empty one
    committed_ = true;
  }

 private:
  static void require_new(const fs::path& path) {
    if (!fs::exists(path)) return;
    if (!fs::is_directory(path)) {
      fail(ErrorKind::input, "--output: {} is a file: name a directory", path.string());
    }
    if (!fs::is_empty(path)) {
      fail(ErrorKind::input, "--output: {} is there already and not empty: name another directory", path.string());
    }
  }
  std::error_code clear() const {
    std::error_code error;
    std::vector<fs::path> left;
    for (fs::directory_iterator entry(beside_, error), end; !error && entry != end; entry.increment(error)) {
      if (entry->path().filename() != DirectoryLock::kFile) left.push_back(entry->path());
    }
    for (size_t i = 0; i < left.size() && !error; ++i) fs::remove_all(left[i], error);
    return error;
  }

  fs::path path_, beside_;
  std::optional<DirectoryLock> lock_;
  bool committed_ = false;
};

int run_fuse(const FuseRequest& request) {
  NewDirectory output(request.output);
  Checkpoint base = load_checkpoint(request.model);
  for (const std::string& warning : base.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const Adapter adapter = load_adapter(request.adapter, base);
  for (const std::string& warning : adapter.warnings) fmt::print(stderr, "warning: {}\n", warning);
  const bool was_tied = base.shape.tied;
  const std::optional<mx::Dtype> dtype = dtype_of(request.dtype);
  const Checkpoint fused = fuse(std::move(base), adapter, dtype);
  if (was_tied && !fused.shape.tied) {
    fmt::print(
        "the adapter parts the embedding from the head: the model has two weights for them now "
        "(tie_word_embeddings: false)\n");
  }
  save_and_compare(fused, output.beside(), dtype);
  output.commit();
  fmt::print("merged {} modules into {}; reload equal: all {} tensors\n", adapter.shape.modules.size(),
             request.output.string(), fused.tensors.size());
  return 0;
}

}  // namespace

Command fuse_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("fuse", "Merge an adapter into its base model");
  const auto request = std::make_shared<FuseRequest>();
  command->add_option("--model", request->model, "The base: a model directory")->required()->type_name("DIR");
  command->add_option("--adapter,--adapter-path", request->adapter, "The adapter, in PEFT's files")
      ->required()
      ->type_name("DIR");
  command->add_option("--output,--save-path", request->output, "Where the merged model goes: a new directory")
      ->required()
      ->type_name("DIR");
  command->add_option("--save-dtype", request->dtype, "float32, bfloat16 or float16; by default the base's dtypes")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->type_name("DTYPE");
  return {command, [request] { return run_fuse(*request); }};
}

}  // namespace trunkline

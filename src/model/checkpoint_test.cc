#include "model/checkpoint.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "model/golden_model_test.h"
#include "model/safetensors.h"
#include "trunkline/error.h"

namespace trunkline {
namespace {

using namespace testing_model;
using nlohmann::json;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The tensors of model.safetensors, to be changed and written back.
struct Tensors {
  explicit Tensors(const fs::path& directory) : path(directory / "model.safetensors") {
    const SafetensorsFile file(path);
    for (const auto& [name, entry] : file.tensors()) values.emplace(name, file.load(name));
  }
  void write() const {
    std::vector<NamedTensor> tensors;
    for (const auto& [name, value] : values) tensors.push_back({name, value, value.dtype()});
    write_safetensors(path, tensors);
  }
  fs::path path;
  std::map<std::string, mx::array> values;
};

std::set<std::string> files_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_directory()) names.insert(fs::relative(entry.path(), directory).string());
  }
  return names;
}

// Writes a JSON header and `data` bytes as a safetensors file.
void write_raw(const fs::path& path, const std::string& header, size_t data) {
  std::string bytes(8, '\0');
  const uint64_t length = header.size();
  std::memcpy(bytes.data(), &length, sizeof length);
  write_file(path, bytes + header + std::string(data, '\1'));
}

TEST(Checkpoint, LoadsInTheOrderOfTheLayout) {
  const Checkpoint checkpoint = load_checkpoint(golden_model("qwen2-bias") / "");  // a trailing slash
  ASSERT_EQ(checkpoint.tensors.size(), checkpoint.layout.size());
  const SafetensorsFile file(golden_model("qwen2-bias") / "model.safetensors");
  for (size_t i = 0; i < checkpoint.layout.size(); ++i) {
    EXPECT_TRUE(same_bits(checkpoint.tensors[i], file.load(checkpoint.layout[i].name)));
    EXPECT_EQ(checkpoint.dtypes[i], mx::float32);
  }
  EXPECT_THAT(checkpoint.warnings, IsEmpty());
}

TEST(Checkpoint, LoadsShards) {
  const Checkpoint checkpoint = load_checkpoint(golden_model("qwen3-untied"));
  EXPECT_EQ(checkpoint.tensors.size(), checkpoint.layout.size());
  EXPECT_EQ(checkpoint.layout.back().name, "lm_head.weight");
}

// As mlx_lm writes it.
TEST(Checkpoint, AnIndexOfTheSingleFileAloneIsNoWarning) {
  const TestFolder folder;
  const fs::path model = folder.model("qwen2-bias");
  json index = {{"weight_map", json::object()}};
  for (const TensorShape& tensor : load_checkpoint(model).layout)
    index["weight_map"][tensor.name] = "model.safetensors";
  write_file(model / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(load_checkpoint(model).warnings, IsEmpty());
  index["weight_map"]["model.norm.weight"] = "model-00001-of-00002.safetensors";
  write_file(model / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(load_checkpoint(model).warnings, ElementsAre(HasSubstr("both exist")));
}

TEST(Checkpoint, NamesEveryAbsentShard) {
  const TestFolder folder;
  const fs::path model = folder.model("qwen3-untied");
  const json index = json::parse(read_file(model / "model.safetensors.index.json"));
  std::set<std::string> shards;
  for (const auto& [tensor, file] : index["weight_map"].items()) shards.insert(file.get<std::string>());
  ASSERT_GE(shards.size(), 2u);
  const std::string kept = *shards.begin();
  for (const std::string& shard : shards) {
    if (shard != kept) fs::remove(model / shard);
  }
  const std::string error = error_of([&] { load_checkpoint(model); });
  for (const std::string& shard : shards) {
    EXPECT_EQ(error.find(shard) == std::string::npos, shard == kept) << error;
  }
}

TEST(Checkpoint, ShardsWithoutTheirIndexAreNamed) {
  const TestFolder folder;
  const fs::path model = folder.model("qwen3-untied");
  fs::remove(model / "model.safetensors.index.json");
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }),
              AllOf(HasSubstr("its shards are here (model-00001-of-0000"), HasSubstr("-of-0000"),
                    HasSubstr("but model.safetensors.index.json, which says what they hold, is not")));
}

TEST(Checkpoint, NamesATensorThatItsShardLacks) {
  const TestFolder folder;
  const fs::path model = folder.model("qwen3-untied");
  json index = json::parse(read_file(model / "model.safetensors.index.json"));
  const std::string shard = index["weight_map"]["model.norm.weight"];
  index["weight_map"]["model.extra.weight"] = shard;
  write_file(model / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("model.extra.weight (in " + shard + ")"));
  index["weight_map"]["model.extra.weight"] = "../" + shard;
  write_file(model / "model.safetensors.index.json", index.dump());
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("../" + shard + " is not a file of this directory"));
  write_file(model / "model.safetensors.index.json", "{}");
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("not an index of safetensors"));
}

TEST(Checkpoint, TiedHead) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  Tensors tensors(model);
  const mx::array embedding = tensors.values.at("model.embed_tokens.weight");
  // Absent is how the golden case has it; equal is dropped without a word; different is told.
  tensors.values.emplace("lm_head.weight", embedding);
  tensors.write();
  Checkpoint checkpoint = load_checkpoint(model);
  EXPECT_THAT(checkpoint.warnings, IsEmpty());
  EXPECT_NE(checkpoint.layout.back().name, "lm_head.weight");

  tensors.values.at("lm_head.weight") = embedding + mx::array(1.0f);
  tensors.write();
  checkpoint = load_checkpoint(model);
  EXPECT_THAT(checkpoint.warnings, ElementsAre(AllOf(HasSubstr("model.safetensors"), HasSubstr("lm_head.weight"))));
  EXPECT_TRUE(same_bits(checkpoint.tensors.front(), embedding));
}

TEST(Checkpoint, UntiedHeadMustBeThere) {
  const TestFolder folder;
  const fs::path model = folder.model("llama3-rope");
  Tensors tensors(model);
  tensors.values.erase("lm_head.weight");
  tensors.write();
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }),
              AllOf(HasSubstr("lm_head.weight is missing"), HasSubstr("tie_word_embeddings")));
}

TEST(Checkpoint, NamesMissingUnknownAndMisshapenTensors) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  const Tensors whole(model);

  Tensors tensors = whole;
  tensors.values.erase("model.layers.1.mlp.up_proj.weight");
  tensors.write();
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("missing: model.layers.1.mlp.up_proj.weight"));

  tensors = whole;
  tensors.values.emplace("model.layers.0.self_attn.q_proj.bias", mx::zeros({36}));
  tensors.write();
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("model.layers.0.self_attn.q_proj.bias"));

  tensors = whole;
  tensors.values.at("model.norm.weight") = mx::zeros({35});
  tensors.write();
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }),
              HasSubstr("model.norm.weight: its shape is [35], config.json makes it [36]"));

  tensors = whole;
  tensors.values.at("model.norm.weight") = mx::zeros({36}, mx::int32);
  tensors.write();
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("model.norm.weight: dtype I32"));

  tensors = whole;
  tensors.values.emplace("model.layers.0.self_attn.rotary_emb.inv_freq", mx::zeros({2}));
  tensors.write();
  EXPECT_EQ(load_checkpoint(model).tensors.size(), whole.values.size()) << "a derived tensor is no matter";
}

TEST(Checkpoint, DirectoriesWithoutAModelAreNamed) {
  const TestFolder folder;
  EXPECT_THAT(error_of([&] { load_checkpoint(folder / "absent"); }), HasSubstr("absent: not a directory"));
  fs::create_directories(folder / "empty");
  EXPECT_THAT(error_of([&] { load_checkpoint(folder / "empty"); }), HasSubstr("no config.json"));
  const fs::path model = folder.model("llama-smol");
  fs::rename(model / "model.safetensors", model / "pytorch_model.bin");
  EXPECT_THAT(error_of([&] { load_checkpoint(model); }), HasSubstr("neither model.safetensors nor"));
}

TEST(Checkpoint, DamagedFilesAreNamed) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  const fs::path file = model / "model.safetensors";
  const std::string bytes = read_file(file);
  const auto message = [&](const std::string& changed) {
    write_file(file, changed);
    return error_of([&] { load_checkpoint(model); });
  };
  const auto damaged = AllOf(HasSubstr(file.string()), HasSubstr("damaged safetensors file"));
  for (size_t kept : {size_t{0}, size_t{5}, size_t{8}, size_t{100}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_THAT(message(bytes.substr(0, kept)), damaged) << kept;
  }
  EXPECT_THAT(message(bytes.substr(0, bytes.size() - 4)), HasSubstr("truncated"));
  EXPECT_THAT(message(bytes + "more"), HasSubstr("4 bytes after the last tensor"));
  EXPECT_THAT(message(std::string(8, '\xff') + bytes.substr(8)), damaged);
  EXPECT_THAT(message("<html>Not found</html>"), damaged);
  EXPECT_THAT(message("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"),
              AllOf(HasSubstr(file.string() + ": is a Git LFS pointer"), HasSubstr("git lfs pull")));
  std::string changed = bytes;
  changed[8] = '[';
  EXPECT_THAT(message(changed), AllOf(damaged, HasSubstr("header")));

  for (
      const char* header :
      {R"([1])", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", R"({"a":{"dtype":"F32","shape":[1]}})",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})",
       R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}})",
       R"({"a":{"dtype":"F32","shape":"x","data_offsets":[0,4]}})",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]}})",
       R"({"__metadata__":{"format":1},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})"}) {
    write_raw(folder / "x.safetensors", header, 4);
    EXPECT_THAT(error_of([&] { SafetensorsFile(folder / "x.safetensors"); }), HasSubstr("damaged")) << header;
  }
  // MLX writes it so where it has nothing to say.
  write_raw(folder / "x.safetensors", R"({"__metadata__":null,"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
            4);
  EXPECT_EQ(SafetensorsFile(folder / "x.safetensors").load("a").size(), 1u);
  write_raw(folder / "x.safetensors", R"({"a":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})", 4);
  EXPECT_THAT(error_of([&] { SafetensorsFile(folder / "x.safetensors").load("a"); }), HasSubstr("F8_E4M3"));
}

TEST(SaveCheckpoint, ReloadsEqualInTheDtypesOfEachTensor) {
  const TestFolder folder;
  const fs::path model = folder.model("qwen3-tied");
  Tensors mixed(model);
  for (auto& [name, value] : mixed.values) {
    if (name.find("norm") == std::string::npos) value = mx::astype(value, mx::bfloat16);
  }
  mixed.values.at("model.norm.weight") = mx::astype(mixed.values.at("model.norm.weight"), mx::float16);
  mixed.write();

  Checkpoint source = load_checkpoint(model);
  Parameters trained = cast(source.tensors, mx::float32);
  for (mx::array& tensor : trained) tensor = tensor * mx::array(1.001f);
  source.tensors.clear();  // saving needs only what they were
  save_checkpoint(source, trained, folder / "out");
  const Checkpoint saved = load_checkpoint(folder / "out");
  for (size_t i = 0; i < trained.size(); ++i) {
    EXPECT_TRUE(same_bits(saved.tensors[i], mx::astype(trained[i], source.dtypes[i]))) << saved.layout[i].name;
  }
  EXPECT_EQ(SafetensorsFile(folder / "out/model.safetensors").metadata().at("format"), "pt");

  save_checkpoint(source, trained, folder / "again");
  EXPECT_EQ(read_file(folder / "out/model.safetensors"), read_file(folder / "again/model.safetensors"));
  EXPECT_EQ(read_file(folder / "out/config.json"), read_file(model / "config.json"));
}

TEST(SaveCheckpoint, NumbersTooLargeForADtypeAreToldAndNothingIsWritten) {
  const TestFolder folder;
  const Checkpoint source = load_checkpoint(folder.model("qwen3-tied"));
  Parameters trained = cast(source.tensors, mx::float32);
  trained[3] = trained[3] * mx::array(0.0f) + mx::array(7e4f);
  const std::string said = error_of([&] { save_checkpoint(source, trained, folder / "out", mx::float16); });
  EXPECT_THAT(said, AllOf(HasSubstr(source.layout[3].name), HasSubstr("too large for float16"),
                          HasSubstr("--save-dtype bfloat16")));
  EXPECT_FALSE(fs::exists(folder / "out/model.safetensors"));
  save_checkpoint(source, trained, folder / "out", mx::bfloat16);
  EXPECT_EQ(load_checkpoint(folder / "out").dtypes[3], mx::bfloat16);
}

TEST(SaveCheckpoint, AnotherDtypeIsWrittenToTheConfigAndNothingElseIs) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  const Checkpoint source = load_checkpoint(model);
  save_checkpoint(source, source.tensors, folder / "out", mx::bfloat16);
  for (const mx::array& tensor : load_checkpoint(folder / "out").tensors) EXPECT_EQ(tensor.dtype(), mx::bfloat16);
  std::string expected = read_file(model / "config.json");
  const std::string before = "\"dtype\": \"float32\"";
  expected.replace(expected.find(before), before.size(), "\"dtype\": \"bfloat16\"");
  EXPECT_EQ(read_file(folder / "out/config.json"), expected);
}

TEST(SaveCheckpoint, CopiesEveryOtherFileByteForByte) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  const std::vector<std::string> kept = {"tokenizer.json",
                                         "chat_template.jinja",
                                         "merges.txt",
                                         "README.md",
                                         "tokenizer.model",
                                         ".gitattributes",
                                         "empty",
                                         "notes.bin",
                                         "additional_chat_templates/tool.jinja",
                                         "original/params.json",
                                         "original/settings.yaml"};  // alone it is no sign of a run
  const std::vector<std::string> left = {
      "pytorch_model.bin", "pytorch_model-00001-of-00002.bin", "pytorch_model.bin.index.json",
      "model.safetensors.index.json", "model-Q4_1.gguf", "original/consolidated.00.pth", "tf_model.h5",
      "flax_model.msgpack", "onnx/model.onnx", ".cache/huggingface/x.metadata", ".git/config",
      "checkpoints/100/state.json", "metrics.jsonl",
      // Outputs of runs, at any depth; one that has only just begun.
      "out/settings.yaml", "out/metrics.jsonl", "out/config.json", "runs/first/checkpoints/8/manifest.json",
      "runs/first/metrics.jsonl", "runs/first/notes.txt", "runs/second/.lock"};
  std::string every_byte;
  for (int i = 0; i < 256; ++i) every_byte += static_cast<char>(i);
  for (const auto& names : {kept, left}) {
    for (const std::string& name : names) {
      fs::create_directories((model / name).parent_path());
      write_file(model / name, name == "empty" ? "" : name + every_byte);
    }
  }
  // A download cache links to its files.
  write_file(folder / "blob", "linked");
  fs::create_symlink(folder / "blob", model / "vocab.json");

  const Checkpoint source = load_checkpoint(model);
  save_checkpoint(source, source.tensors, folder / "out");
  std::set<std::string> expected(kept.begin(), kept.end());
  expected.insert({"config.json", "generation_config.json", "model.safetensors", "vocab.json"});
  EXPECT_EQ(files_in(folder / "out"), expected);
  for (const std::string& name : kept) EXPECT_EQ(read_file(folder / ("out/" + name)), read_file(model / name)) << name;
  EXPECT_EQ(read_file(folder / "out/vocab.json"), "linked");
  EXPECT_FALSE(fs::is_symlink(folder / "out/vocab.json"));

  fs::remove(folder / "blob");
  EXPECT_THAT(error_of([&] { save_checkpoint(source, source.tensors, folder / "out"); }), HasSubstr("vocab.json"));
}

TEST(SaveCheckpoint, ShardsPastTheLimitAndRemovesOldWeights) {
  const TestFolder folder;
  const Checkpoint source = load_checkpoint(golden_model("llama3-rope"));
  save_checkpoint(source, source.tensors, folder / "out", std::nullopt, 50'000);
  const json index = json::parse(read_file(folder / "out/model.safetensors.index.json"));
  uint64_t total = 0;
  for (const mx::array& tensor : source.tensors) total += tensor.nbytes();
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(index["weight_map"].size(), source.layout.size());
  std::set<std::string> shards;
  for (const auto& [tensor, file] : index["weight_map"].items()) shards.insert(file.get<std::string>());
  EXPECT_EQ(*shards.begin(), fmt::format("model-00001-of-{:05}.safetensors", shards.size()));
  EXPECT_EQ(shards.size(), 3u);
  for (const std::string& shard : shards) EXPECT_LE(fs::file_size(folder / ("out/" + shard)), 52'000u);
  const Checkpoint saved = load_checkpoint(folder / "out");
  for (size_t i = 0; i < saved.tensors.size(); ++i) EXPECT_TRUE(same_bits(saved.tensors[i], source.tensors[i]));

  save_checkpoint(source, source.tensors, folder / "out");
  EXPECT_EQ(files_in(folder / "out"),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
}

TEST(SaveCheckpoint, SavesATiedHeadOnce) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  Tensors tensors(model);
  tensors.values.emplace("lm_head.weight", tensors.values.at("model.embed_tokens.weight"));
  tensors.write();
  const Checkpoint source = load_checkpoint(model);
  save_checkpoint(source, source.tensors, folder / "out");
  EXPECT_FALSE(SafetensorsFile(folder / "out/model.safetensors").tensors().contains("lm_head.weight"));
}

TEST(SaveCheckpoint, KeepsOddShapesAligned) {
  const TestFolder folder;
  write_safetensors(folder / "x", {{"a", mx::ones({3}), mx::bfloat16}, {"b", mx::ones({2}), mx::float32}});
  const SafetensorsFile file(folder / "x");
  EXPECT_EQ(file.tensors().at("b").begin % 8, 0u);
  EXPECT_EQ(file.tensors().at("a").begin, file.tensors().at("b").end);
  EXPECT_TRUE(same_bits(file.load("a"), mx::ones({3}, mx::bfloat16)));
}

TEST(SaveCheckpoint, SourceMayBeReadOnlyAndIsNeverTheTarget) {
  const TestFolder folder;
  const fs::path model = folder.model("llama-smol");
  for (const auto& entry : fs::directory_iterator(model)) fs::permissions(entry.path(), fs::perms::owner_read);
  fs::permissions(model, fs::perms::owner_read | fs::perms::owner_exec);
  const Checkpoint source = load_checkpoint(model);
  save_checkpoint(source, source.tensors, folder / "out");
  EXPECT_NE(fs::status(folder / "out/config.json").permissions() & fs::perms::owner_write, fs::perms::none);
  fs::permissions(model, fs::perms::owner_all);
  EXPECT_THAT(error_of([&] { save_checkpoint(source, source.tensors, model); }), HasSubstr("over its own source"));
  write_file(folder / "file", "");
  EXPECT_THAT(error_of([&] { save_checkpoint(source, source.tensors, folder / "file"); }), HasSubstr("/file"));
  save_checkpoint(source, source.tensors, model / "tuned");
  EXPECT_FALSE(fs::exists(model / "tuned/tuned"));
}

// A limit on file sizes stands in for a full disk: write() fails in the middle of the weights.
TEST(SaveCheckpoint, AFullDiskLeavesNoBrokenFile) {
  const TestFolder folder;
  const Checkpoint source = load_checkpoint(golden_model("llama-smol"));
  save_checkpoint(source, source.tensors, folder / "out");
  const std::string before = read_file(folder / "out/model.safetensors");
  Parameters changed = source.tensors;
  for (mx::array& tensor : changed) tensor = tensor + mx::array(1.0f);
  mx::eval(changed);

  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &limit), 0);
  const rlimit small{50'000, limit.rlim_max};
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string error = error_of([&] { save_checkpoint(source, changed, folder / "out"); });
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  signal(SIGXFSZ, old_handler);

  EXPECT_THAT(error, AllOf(HasSubstr("cannot write"), HasSubstr("model.safetensors")));
  EXPECT_EQ(read_file(folder / "out/model.safetensors"), before);
  EXPECT_EQ(files_in(folder / "out"),
            (std::set<std::string>{"config.json", "generation_config.json", "model.safetensors"}));
}

}  // namespace
}  // namespace trunkline

// Models packed by MLX: computed as what they unpack to, frozen under an adapter, fused into a plain model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "model/fuse.h"
#include "model/golden_model_test.h"
#include "model/packed_model_test.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using testing_model::golden_model;
using testing_model::TestFolder;
using testing_model::write_packed;

double furthest(const mx::array& a, const mx::array& b) { return mx::max(mx::abs(mx::subtract(a, b))).item<float>(); }

TEST(Quantized, IsComputedAsWhatItUnpacksTo) {
  for (const char* name : {"qwen3-tied", "qwen3-untied", "qwen2-bias"}) {
    for (const int bits : {4, 8}) {
      const TestFolder folder;
      write_packed(folder, name, bits);
      const Checkpoint packed = load_checkpoint(folder / "packed"), plain = load_checkpoint(folder / "plain");
      EXPECT_EQ(packed.shape.parameters(), plain.shape.parameters());
      const mx::array ids({1, 2, 3, 4, 5}, {1, 5}, mx::int32);
      const mx::array a = Decoder(packed.shape).logits(cast(packed.tensors, mx::float32), ids);
      const mx::array b = Decoder(plain.shape).logits(cast(plain.tensors, mx::float32), ids);
      EXPECT_LT(furthest(a, b), 2e-5) << name << " " << bits;
    }
  }
}

TEST(Quantized, IsFusedIntoAPlainModel) {
  const TestFolder folder;
  write_packed(folder, "qwen3-tied", 4);
  const Checkpoint packed = load_checkpoint(folder / "packed");
  for (const bool dora : {false, true}) {
    AdapterConfig config;
    config.dora = dora;
    config.targets.list = {"q_proj", "down_proj", "embed_tokens", "lm_head"};
    Adapter adapter = new_adapter(config, packed, 1);
    for (mx::array& tensor : adapter.tensors) tensor = tensor + mx::full(tensor.shape(), 0.02f);
    Parameters all = cast(packed.tensors, mx::float32);
    all.insert(all.end(), adapter.tensors.begin(), adapter.tensors.end());
    const mx::array ids({1, 2, 3, 4, 5}, {1, 5}, mx::int32);
    const mx::array adapted = Decoder(packed.shape, adapter.shape).logits(all, ids);
    const fs::path out = folder / (dora ? "dora" : "lora");
    save_and_compare(fuse(packed, adapter), out);
    const Checkpoint fused = load_checkpoint(out);
    EXPECT_FALSE(fused.shape.quantization);
    EXPECT_FALSE(fused.shape.tied);
    EXPECT_LT(furthest(Decoder(fused.shape).logits(cast(fused.tensors, mx::float32), ids), adapted), 5e-5);
    const json written = json::parse(read_file(out / "config.json"));
    EXPECT_FALSE(written.contains("quantization") || written.contains("quantization_config"));
    EXPECT_FALSE(written["tie_word_embeddings"].get<bool>());
  }
}

TEST(Quantized, WhatDoesNotFitIsNamed) {
  const TestFolder folder;
  write_packed(folder, "qwen3-tied", 4);
  const auto error_with = [&](const json& quantization) {
    json config = json::parse(read_file(folder / "packed/config.json"));
    config["quantization"] = config["quantization_config"] = quantization;
    write_file(folder / "packed/config.json", config.dump());
    try {
      load_checkpoint(folder / "packed");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EXPECT_EQ(error_with({{"group_size", 32}, {"bits", 4}}), "nothing was thrown");
  EXPECT_THAT(error_with({{"group_size", 32}, {"bits", 8}}), HasSubstr("its shape is"));
  EXPECT_THAT(error_with({{"group_size", 64}, {"bits", 4}}), HasSubstr("no whole groups of 64"));
  EXPECT_THAT(error_with({{"group_size", 32}, {"bits", 4}, {"model.embed_tokens", false}}),
              HasSubstr("model.embed_tokens.biases"));
}

}  // namespace
}  // namespace trunkline

// Models packed by MLX: computed as what they unpack to, frozen under an adapter, fused into a plain model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "model/fuse.h"
#include "model/golden_model_test.h"
#include "model/linear.h"
#include "model/safetensors.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;
using testing_model::golden_model;
using testing_model::TestFolder;

// A golden checkpoint packed, but for the down projections, whose rows are no whole groups; in `packed`, and what it
// unpacks to in `plain`.
void write_packed(const TestFolder& folder, const std::string& name, int bits) {
  for (const char* to : {"packed", "plain"}) fs::copy(golden_model(name), folder / to);
  const Checkpoint source = load_checkpoint(golden_model(name));
  std::vector<NamedTensor> packed, plain;
  for (size_t i = 0; i < source.layout.size(); ++i) {
    const std::string& tensor = source.layout[i].name;
    const mx::array& value = source.tensors[i];
    if (value.ndim() != 2 || tensor.find("down_proj") != std::string::npos) {
      packed.push_back({tensor, value, value.dtype()});
      plain.push_back({tensor, value, value.dtype()});
      continue;
    }
    const std::string module = tensor.substr(0, tensor.rfind('.'));
    const std::vector<mx::array> parts = mx::quantize(value, 32, bits);
    packed.push_back({module + ".weight", parts[0], mx::uint32});
    packed.push_back({module + ".scales", parts[1], parts[1].dtype()});
    packed.push_back({module + ".biases", parts[2], parts[2].dtype()});
    const mx::array again = mx::dequantize(parts[0], parts[1], parts[2], 32, bits);
    plain.push_back({tensor, again, value.dtype()});
  }
  write_safetensors(folder / "packed/model.safetensors", packed);
  write_safetensors(folder / "plain/model.safetensors", plain);
  json config = json::parse(read_file(folder / "packed/config.json"));
  config["quantization"] = {{"group_size", 32}, {"bits", bits}, {"model.layers.0.mlp.down_proj", false}};
  config["quantization_config"] = config["quantization"];
  write_file(folder / "packed/config.json", config.dump());
}

double furthest(const mx::array& a, const mx::array& b) { return mx::max(mx::abs(mx::subtract(a, b))).item<float>(); }

TEST(Quantized, IsComputedAsWhatItUnpacksTo) {
  for (const char* name : {"qwen3-tied", "qwen3-untied", "llama-biases"}) {
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

#include "plan/model_shape.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "trunkline/error.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

constexpr auto kGolden = TRUNKLINE_SOURCE_DIR "/tests/golden/";

// A config that reads, to be changed key by key.
json llama() {
  return json::parse(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64,
      "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
      "vocab_size": 100, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "tie_word_embeddings": true})");
}

json qwen(const std::string& type) {
  json config = llama();
  config["model_type"] = type;
  config["architectures"] = {type == "qwen2" ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM"};
  return config;
}

json with(json config, const json& changes) {
  for (const auto& [key, value] : changes.items()) {
    config[key] = value;
  }
  return config;
}

json without(json config, const std::string& key) {
  config.erase(key);
  return config;
}

class ModelShapeTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(path_.parent_path()); }
  void TearDown() override { fs::remove_all(path_.parent_path()); }

  ModelShape read(const std::string& text) {
    write_file(path_, text);
    return read_model_shape(path_);
  }
  ModelShape read(const json& config) { return read(config.dump()); }

  // The error's text, which must name the file.
  std::string error_of(const std::string& text, ErrorKind kind) {
    try {
      read(text);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(path_.string()));
      EXPECT_EQ(static_cast<int>(error.kind()), static_cast<int>(kind)) << error.what();
      return error.what();
    }
    return "nothing was thrown";
  }
  std::string error_of(const json& config, ErrorKind kind) { return error_of(config.dump(), kind); }

  fs::path path_ = fs::temp_directory_path() / fmt::format("trunkline-model-shape-{}", ::getpid()) / "config.json";
};

TEST_F(ModelShapeTest, ReadsAllOfAGoldenConfig) {
  const ModelShape shape = read_model_shape(std::string(kGolden) + "llama-smol/model/config.json");
  EXPECT_EQ(shape.family, Family::llama);
  EXPECT_EQ(shape.hidden, 36);
  EXPECT_EQ(shape.intermediate, 56);
  EXPECT_EQ(shape.layers, 2);
  EXPECT_EQ(shape.heads, 9);
  EXPECT_EQ(shape.kv_heads, 3);
  EXPECT_EQ(shape.head_dim, 4);
  EXPECT_EQ(shape.vocab, 131);
  EXPECT_EQ(shape.max_positions, 512);
  EXPECT_EQ(shape.norm_eps, 1e-6);
  EXPECT_TRUE(shape.tied);
  EXPECT_EQ(shape.rope, (RopeShape{.type = RopeShape::Type::standard, .theta = 1e6}));
  EXPECT_EQ(shape.eos, std::vector<int64_t>{2});
  EXPECT_EQ(shape.dtype, Dtype::f32);
}

TEST_F(ModelShapeTest, CountsTheParametersOfSmolLm2) {
  const ModelShape shape = read(with(llama(), {{"hidden_size", 576},
                                               {"intermediate_size", 1536},
                                               {"num_hidden_layers", 30},
                                               {"num_attention_heads", 9},
                                               {"num_key_value_heads", 3},
                                               {"vocab_size", 49152}}));
  EXPECT_EQ(shape.head_dim, 64);
  EXPECT_EQ(shape.parameters(), 134'515'008);
}

TEST_F(ModelShapeTest, TensorTableIsWhatHuggingFaceSaves) {
  for (const char* name : {"llama-smol", "qwen2-bias", "llama3-rope", "qwen3-tied"}) {
    const fs::path model = std::string(kGolden) + name + "/model";
    const std::string file = read_file(model / "model.safetensors");
    uint64_t length = 0;
    std::memcpy(&length, file.data(), sizeof length);
    json header = json::parse(file.substr(sizeof length, length));
    header.erase("__metadata__");
    for (const TensorShape& tensor : tensor_shapes(read_model_shape(model / "config.json"))) {
      ASSERT_TRUE(header.contains(tensor.name)) << name << " " << tensor.name;
      EXPECT_EQ(header[tensor.name]["shape"].get<std::vector<int64_t>>(), tensor.dims) << tensor.name;
      header.erase(tensor.name);
    }
    EXPECT_TRUE(header.empty()) << name << " lacks " << header.dump();
  }
}

TEST_F(ModelShapeTest, BiasesFollowTheFamily) {
  const ModelShape plain = read(llama());
  EXPECT_FALSE(plain.qkv_bias || plain.output_bias || plain.mlp_bias || plain.qk_norm);
  const ModelShape biased = read(with(llama(), {{"attention_bias", true}, {"mlp_bias", true}}));
  EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
  const ModelShape qwen2 = read(qwen("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.output_bias && !qwen2.qk_norm);
  const ModelShape qwen3 = read(qwen("qwen3"));
  EXPECT_TRUE(!qwen3.qkv_bias && qwen3.qk_norm);
  EXPECT_TRUE(read(with(qwen("qwen3"), {{"attention_bias", true}})).output_bias);
}

TEST_F(ModelShapeTest, AbsentKeysMeanWhatTransformersMeans) {
  EXPECT_EQ(read(without(llama(), "num_key_value_heads")).kv_heads, 4);
  EXPECT_EQ(read(with(llama(), {{"num_key_value_heads", nullptr}})).kv_heads, 4);
  EXPECT_EQ(read(llama()).head_dim, 16);
  EXPECT_EQ(read(with(llama(), {{"head_dim", 24}})).head_dim, 24);
  EXPECT_EQ(read(qwen("qwen3")).head_dim, 128);
  EXPECT_EQ(read(without(llama(), "rms_norm_eps")).norm_eps, 1e-6);
  EXPECT_EQ(read(without(llama(), "max_position_embeddings")).max_positions, 2048);
  EXPECT_FALSE(read(without(llama(), "tie_word_embeddings")).tied);
  EXPECT_EQ(read(llama()).rope.theta, 10000.0);
  EXPECT_EQ(read(llama()).dtype, std::nullopt);
  EXPECT_TRUE(read(llama()).eos.empty());
  EXPECT_EQ(read(without(llama(), "architectures")).hidden, 64);
}

TEST_F(ModelShapeTest, ReadsEndTokensAndDtypes) {
  EXPECT_EQ(read(with(llama(), {{"eos_token_id", {2, 7}}})).eos, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(read(with(llama(), {{"torch_dtype", "bfloat16"}})).dtype, Dtype::bf16);
  EXPECT_EQ(read(with(llama(), {{"dtype", "float16"}})).dtype, Dtype::f16);
}

TEST_F(ModelShapeTest, BothSpellingsOfRope) {
  const json scaling = {{"type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  const RopeShape expected{.type = RopeShape::Type::llama3,
                           .theta = 5e5,
                           .factor = 8.0,
                           .low_freq_factor = 1.0,
                           .high_freq_factor = 4.0,
                           .original_max_positions = 64.0};
  json parameters = scaling;
  parameters["rope_theta"] = 5e5;
  EXPECT_EQ(read(with(llama(), {{"rope_theta", 5e5}, {"rope_scaling", scaling}})).rope, expected);
  EXPECT_EQ(read(with(llama(), {{"rope_parameters", parameters}})).rope, expected);
  EXPECT_EQ(read(with(llama(), {{"rope_parameters", parameters}, {"rope_theta", 5e5}, {"rope_scaling", scaling}})).rope,
            expected);
  EXPECT_EQ(read(with(llama(), {{"rope_parameters", scaling}, {"rope_theta", 5e5}})).rope, expected);
  EXPECT_EQ(read(with(llama(), {{"rope_parameters", parameters}, {"rope_scaling", nullptr}})).rope, expected);

  EXPECT_THAT(error_of(with(llama(), {{"rope_parameters", parameters}, {"rope_theta", 1e4}}), ErrorKind::input),
              HasSubstr("rope_theta 10000 and rope_parameters.rope_theta 500000 disagree"));
  json other = scaling;
  other["factor"] = 4.0;
  EXPECT_THAT(error_of(with(llama(), {{"rope_parameters", parameters}, {"rope_scaling", other}}), ErrorKind::input),
              HasSubstr("rope_scaling and rope_parameters disagree"));
  other = scaling;
  other["rope_type"] = "yarn";
  EXPECT_THAT(error_of(with(llama(), {{"rope_scaling", other}}), ErrorKind::input), HasSubstr("disagree"));
}

TEST_F(ModelShapeTest, RopeTypesTakeTheirNumbers) {
  const auto rope = [&](const json& parameters) { return read(with(llama(), {{"rope_parameters", parameters}})).rope; };
  EXPECT_EQ(rope({{"rope_type", "linear"}, {"factor", 2.5}}).factor, 2.5);
  EXPECT_EQ(rope({{"rope_type", "default"}, {"rope_theta", 7.0}}).theta, 7.0);
  const RopeShape yarn = rope({{"rope_type", "yarn"},
                               {"factor", 4.0},
                               {"beta_fast", 16},
                               {"mscale", 0.7},
                               {"mscale_all_dim", 0},
                               {"truncate", false}});
  EXPECT_EQ(yarn.original_max_positions, 512.0) << "max_position_embeddings, where nothing else is said";
  EXPECT_EQ(yarn.beta_fast, 16.0);
  EXPECT_EQ(yarn.beta_slow, 1.0);
  EXPECT_EQ(yarn.mscale, 0.7);
  EXPECT_EQ(yarn.mscale_all_dim, std::nullopt) << "zero is absent";
  EXPECT_FALSE(yarn.truncate);
  EXPECT_EQ(rope({{"rope_type", "yarn"}, {"factor", nullptr}, {"original_max_position_embeddings", 128}}).factor, 4.0);
  EXPECT_EQ(read(with(llama(), {{"original_max_position_embeddings", 32},
                                {"rope_scaling", {{"type", "yarn"}, {"factor", 2.0}}}}))
                .rope.original_max_positions,
            32.0);
}

TEST_F(ModelShapeTest, SlidingWindowsOutOfUseAreNoMatter) {
  for (const json& changes :
       std::vector<json>{{{"use_sliding_window", false}, {"sliding_window", 4096}, {"max_window_layers", 1}},
                         {{"sliding_window", 32768}},
                         {{"use_sliding_window", true}, {"sliding_window", nullptr}, {"max_window_layers", 0}},
                         {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 2}},
                         {{"layer_types", {"full_attention", "full_attention"}}, {"sliding_window", nullptr}}}) {
    EXPECT_EQ(read(with(qwen("qwen2"), changes)).layers, 2) << changes.dump();
  }
}

TEST_F(ModelShapeTest, RefusesByNameWhatItDoesNotCompute) {
  struct Case {
    json config;
    const char* named;
  };
  const json moe = json::parse(read_file(std::string(kGolden) + "qwen3-moe/model/config.json"));
  for (const Case& c : std::vector<Case>{
           {moe, "model_type: \"qwen3_moe\""},
           {with(llama(), {{"model_type", "mistral"}}), "\"mistral\""},
           {with(llama(), {{"architectures", {"LlamaForSequenceClassification"}}}), "LlamaForSequenceClassification"},
           {with(llama(), {{"hidden_act", "gelu"}}), "hidden_act: \"gelu\""},
           {with(llama(), {{"attention_dropout", 0.1}}), "attention_dropout: 0.1"},
           {with(llama(), {{"pretraining_tp", 2}}), "pretraining_tp: 2"},
           {with(llama(), {{"partial_rotary_factor", 0.5}}), "partial_rotary_factor: 0.5"},
           {with(llama(), {{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}), "rope_parameters.partial_rotary"},
           {with(llama(), {{"quantization_config", {{"bits", 4}}}}), "quantization_config"},
           {with(llama(), {{"quantization", {{"bits", 3}, {"group_size", 64}}}}), "quantization.bits"},
           {with(llama(), {{"quantization", {{"bits", 4}, {"group_size", 48}}}}), "quantization.group_size"},
           {with(llama(), {{"quantization", {{"bits", 4}, {"group_size", 32}, {"mode", "mxfp4"}}}}),
            "quantization.mode"},
           {with(llama(), {{"quantization", {{"bits", 4}, {"group_size", 32}, {"lm_head", 4}}}}),
            "quantization.lm_head"},
           {with(llama(), {{"num_local_experts", 8}}), "num_local_experts: 8"},
           {with(llama(), {{"text_config", json::object()}}), "text_config"},
           {with(llama(), {{"sliding_window", 64}}), "sliding_window: 64"},
           {with(llama(), {{"dtype", "float64"}}), "dtype: \"float64\""},
           {with(llama(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}}), "\"dynamic\""},
           {with(llama(), {{"rope_parameters", {{"rope_type", "longrope"}}}}), "\"longrope\""},
           {with(qwen("qwen2"), {{"use_sliding_window", true}, {"sliding_window", 64}, {"max_window_layers", 1}}),
            "sliding_window: 64"},
           {with(qwen("qwen3"), {{"use_sliding_window", true}, {"max_window_layers", 0}}), "use_sliding_window: true"},
           {with(qwen("qwen3"), {{"layer_types", {"full_attention", "sliding_attention"}}}), "layer_types"},
           {with(qwen("qwen2"), {{"mlp_bias", true}}), "mlp_bias: true"}}) {
    EXPECT_THAT(error_of(c.config, ErrorKind::unsupported), HasSubstr(c.named));
  }
}

TEST_F(ModelShapeTest, BadValuesAreNamed) {
  struct Case {
    json config;
    const char* named;
  };
  for (const Case& c : std::vector<Case>{
           {without(llama(), "model_type"), "model_type is missing"},
           {without(llama(), "hidden_size"), "hidden_size is missing"},
           {without(llama(), "vocab_size"), "vocab_size is missing"},
           {without(qwen("qwen2"), "num_key_value_heads"), "num_key_value_heads is missing"},
           {with(llama(), {{"hidden_size", 0}}), "hidden_size: 0"},
           {with(llama(), {{"hidden_size", -64}}), "hidden_size: -64"},
           {with(llama(), {{"hidden_size", "64"}}), "hidden_size: \"64\" is not a whole number"},
           {with(llama(), {{"hidden_size", 64.5}}), "hidden_size: 64.5"},
           {with(llama(), {{"vocab_size", 3'000'000'000}}), "vocab_size: 3000000000"},
           {with(llama(), {{"num_hidden_layers", 2'000'000}}), "num_hidden_layers: 2000000"},
           {with(llama(), {{"num_key_value_heads", 3}}), "num_key_value_heads: 3 does not divide"},
           {with(llama(), {{"num_attention_heads", 6}}), "num_attention_heads: 6 does not divide hidden_size"},
           {with(llama(), {{"head_dim", 15}}), "head_dim 15 is odd"},
           {with(llama(), {{"rms_norm_eps", 0}}), "rms_norm_eps: 0 is not positive"},
           {with(llama(), {{"rms_norm_eps", "small"}}), "rms_norm_eps"},
           {with(llama(), {{"tie_word_embeddings", "yes"}}), "tie_word_embeddings: \"yes\""},
           {with(llama(), {{"eos_token_id", -1}}), "eos_token_id: -1"},
           {with(llama(), {{"eos_token_id", {2, "x"}}}), "eos_token_id"},
           {with(llama(), {{"rope_theta", 0}}), "rope_theta: 0 is not positive"},
           {with(llama(), {{"rope_parameters", 5}}), "rope_parameters is not a JSON object"},
           {with(llama(), {{"quantization", {{"bits", 4}}}}), "quantization.group_size is missing"},
           {with(llama(), {{"rope_scaling", {{"type", "linear"}}}}), "rope_scaling.factor is missing"},
           {with(llama(), {{"rope_scaling", {{"type", "yarn"}}}}), "rope_scaling.factor is missing"},
           {with(llama(), {{"rope_scaling", {{"type", "llama3"}, {"factor", 8}}}}), "low_freq_factor is missing"},
           {with(llama(), {{"rope_scaling",
                            {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}}}),
            "high_freq_factor: 4 is not above low_freq_factor"},
           {with(llama(), {{"rope_scaling", {{"type", "linear"}, {"factor", -1}}}}), "factor: -1 is not positive"},
           {with(qwen("qwen3"), {{"layer_types", {"full_attention"}}}), "layer_types"}}) {
    EXPECT_THAT(error_of(c.config, ErrorKind::input), HasSubstr(c.named));
  }
  EXPECT_THAT(error_of(std::string("{\"model_type\": "), ErrorKind::input), HasSubstr("not JSON"));
  EXPECT_THAT(error_of(std::string("[]"), ErrorKind::input), HasSubstr("not a JSON object"));
}

}  // namespace
}  // namespace trunkline

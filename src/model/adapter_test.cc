// Reading adapters: PEFT's files as they are, and what is wrong with others, by name.
#include "model/adapter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "model/decoder.h"
#include "model/golden_model_test.h"
#include "model/linear.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing_model::golden_model;
using testing_model::TestFolder;

constexpr const char* kQuery = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";

class AdapterFiles : public ::testing::Test {
 protected:
  AdapterFiles() {
    fs::copy(fs::path(TRUNKLINE_SOURCE_DIR) / "tests/golden-lora/lora-qwen3/before", path(),
             fs::copy_options::recursive);
  }
  fs::path path() const { return folder_ / "adapter"; }

  void change_config(const std::function<void(json&)>& change) const {
    json config = json::parse(read_file(path() / "adapter_config.json"));
    change(config);
    write_file(path() / "adapter_config.json", config.dump());
  }
  void change_tensors(const std::function<void(std::vector<NamedTensor>&)>& change) const {
    std::vector<NamedTensor> tensors;
    {
      const SafetensorsFile file(path() / "adapter_model.safetensors");
      for (const auto& [name, stored] : file.tensors()) {
        const mx::array value = file.load(name);
        tensors.push_back({name, value, value.dtype()});
      }
    }
    change(tensors);
    write_safetensors(path() / "adapter_model.safetensors", tensors);
  }
  std::string error() const {
    try {
      load_adapter(path(), base_);
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  std::string error_with(const std::string& key, const json& value) const {
    const std::string text = read_file(path() / "adapter_config.json");
    change_config([&](json& config) { config[key] = value; });
    std::string said = error();
    write_file(path() / "adapter_config.json", text);
    return said;
  }

  TestFolder folder_;
  Checkpoint base_ = load_checkpoint(golden_model("qwen3-untied"));
};

TEST_F(AdapterFiles, AreReadAndWrittenAgain) {
  const Adapter adapter = load_adapter(path(), base_);
  EXPECT_EQ(adapter.shape.modules.size(), 12u);
  EXPECT_EQ(adapter.shape.modules.front().name, "model.layers.0.self_attn.q_proj");
  EXPECT_EQ(adapter.shape.modules.front().scale, 2.0);
  save_adapter(adapter, folder_ / "again");
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors"}) {
    EXPECT_EQ(read_file(folder_ / "again" / file), read_file(path() / file));
  }
}

TEST_F(AdapterFiles, SettingsThatAreNotComputedAreNamed) {
  EXPECT_THAT(error_with("bias", "all"), HasSubstr("bias: \"all\" is not supported"));
  EXPECT_THAT(error_with("modules_to_save", {"lm_head"}), HasSubstr("modules_to_save"));
  EXPECT_THAT(error_with("lora_bias", true), HasSubstr("lora_bias"));
  EXPECT_THAT(error_with("layer_replication", {{0, 2}}), HasSubstr("layer_replication"));
  EXPECT_THAT(error_with("peft_type", "IA3"), HasSubstr("peft_type: \"IA3\""));
  EXPECT_THAT(error_with("task_type", "SEQ_CLS"), HasSubstr("task_type"));
  EXPECT_THAT(error_with("init_lora_weights", "pissa"), HasSubstr("init_lora_weights"));
  EXPECT_THAT(error_with("use_something_new", 3), HasSubstr("use_something_new: 3 is not supported"));
  EXPECT_EQ(error_with("use_something_new", nullptr), "nothing was thrown");
  EXPECT_THAT(error_with("r", 0), HasSubstr("r: 0"));
  EXPECT_THAT(error_with("r", "four"), HasSubstr("r: \"four\""));
  EXPECT_THAT(error_with("lora_alpha", "8"), HasSubstr("lora_alpha"));
  EXPECT_THAT(error_with("lora_dropout", 1.5), HasSubstr("lora_dropout"));
  EXPECT_THAT(error_with("target_modules", nullptr), HasSubstr("no module is named"));
  EXPECT_THAT(error_with("target_modules", {"self_attn"}),
              HasSubstr("model.layers.0.self_attn cannot have an adapter"));
  EXPECT_THAT(error_with("target_modules", {"wq"}), HasSubstr("no module of this model is named"));
  EXPECT_THAT(error_with("target_modules", "(q_proj"), HasSubstr("\"(q_proj\" is not read as a regular expression"));
  EXPECT_THAT(error_with("layers_to_transform", {7}), HasSubstr("there is no layer 7 in a model of 3"));
  EXPECT_THAT(error_with("layers_pattern", "layers"), HasSubstr("layers_pattern without"));
  EXPECT_THAT(error_with("rank_pattern", {{"q_proj", -1}}), HasSubstr("rank_pattern"));
  EXPECT_THAT(error_with("fan_in_fan_out", true), HasSubstr("fan_in_fan_out: true is not supported"));
}

TEST_F(AdapterFiles, NamesThatFitNoModuleAreNamed) {
  EXPECT_THAT(error_with("target_modules", {"wq", "wk"}), HasSubstr("no module of this model is named wq or wk"));
  EXPECT_THAT(error_with("rank_pattern", {{"nope", 4}}),
              HasSubstr("rank_pattern: no module of this model fits \"nope\""));
  EXPECT_THAT(error_with("alpha_pattern", {{"nope", 4}}), HasSubstr("alpha_pattern: no module of this model fits"));
  EXPECT_THAT(error_with("exclude_modules", {"zzz"}),
              HasSubstr("exclude_modules: no module of this model is named zzz"));
  EXPECT_THAT(error_with("exclude_modules", ".*zzz"), HasSubstr("exclude_modules: no module of this model fits"));
  // PEFT is content with targets of which some are there.
  EXPECT_THAT(load_adapter(path(), base_).warnings, IsEmpty());
  change_config([](json& config) { config["target_modules"].push_back("nope"); });
  EXPECT_THAT(load_adapter(path(), base_).warnings,
              ElementsAre(HasSubstr("target_modules: no module of this model is named nope")));
}

TEST_F(AdapterFiles, AnotherBaseOfTheSameShapeIsTold) {
  AdapterConfig config;
  config.targets.list = {"q_proj"};
  save_adapter(new_adapter(config, base_, 3), path());
  EXPECT_THAT(load_adapter(path(), base_).warnings, IsEmpty());
  for (const size_t place : {size_t{0}, base_.tensors.size() / 2, base_.tensors.size() - 1}) {
    Checkpoint other = base_;
    other.tensors[place] = mx::astype(other.tensors[place] * mx::array(1.5f), other.dtypes[place]);
    EXPECT_THAT(load_adapter(path(), other).warnings, ElementsAre(HasSubstr("trained on other weights")))
        << base_.layout[place].name;
  }
  // Read and written, it still knows its base.
  save_adapter(load_adapter(path(), base_), folder_ / "again");
  EXPECT_EQ(read_file(folder_ / "again/adapter_model.safetensors"), read_file(path() / "adapter_model.safetensors"));
}

TEST_F(AdapterFiles, TensorsThatDoNotFitAreNamed) {
  // What settings call for is what the file must hold.
  EXPECT_THAT(error_with("r", 5), HasSubstr(std::string(kQuery) + ": its shape is [4, 32]"));
  EXPECT_THAT(error_with("use_dora", true), HasSubstr("lora_magnitude_vector is missing"));
  EXPECT_THAT(error_with("target_modules", {"q_proj", "v_proj", "gate_proj"}),
              HasSubstr("down_proj.lora_A.weight belongs to no module"));
  EXPECT_THAT(error_with("layers_to_transform", {0, 1}), HasSubstr("layers.2"));
  change_tensors([](std::vector<NamedTensor>& tensors) { tensors.pop_back(); });
  EXPECT_THAT(error(), HasSubstr("is missing"));
  fs::remove(path() / "adapter_model.safetensors");
  EXPECT_THAT(error(), HasSubstr("no adapter_model.safetensors"));
  write_file(path() / "adapter_model.safetensors", "short");
  EXPECT_THAT(error(), HasSubstr("damaged"));
  fs::remove(path() / "adapter_config.json");
  EXPECT_THAT(error(), HasSubstr("no adapter_config.json"));
}

TEST_F(AdapterFiles, ValuesAreFiniteAndOfAFloatingType) {
  change_tensors([](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) {
      if (tensor.name == kQuery) tensor.value = tensor.value / mx::array(0.0f);
    }
  });
  EXPECT_THAT(error(), HasSubstr(std::string(kQuery) + ": holds an infinity"));
  change_tensors([](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) {
      if (tensor.name == kQuery) tensor.dtype = mx::int32;
    }
  });
  EXPECT_THAT(error(), HasSubstr("dtype I32 is not supported"));
}

// What PEFT stores beside an adapter of the head: the base's own weight.
TEST_F(AdapterFiles, CopiesOfTheBaseMustBeTheBases) {
  const fs::path source = fs::path(TRUNKLINE_SOURCE_DIR) / "tests/golden-lora/lora-head/before";
  fs::remove_all(path());
  fs::copy(source, path(), fs::copy_options::recursive);
  const std::string copy = "base_model.model.lm_head.base_layer.weight";
  mx::array head = base_.tensors.back();
  change_tensors([&](std::vector<NamedTensor>& tensors) { tensors.push_back({copy, head, head.dtype()}); });
  const Adapter adapter = load_adapter(path(), base_);
  ASSERT_EQ(adapter.base_copies.size(), 1u);
  save_adapter(adapter, folder_ / "again");
  const SafetensorsFile again(folder_ / "again/adapter_model.safetensors");
  EXPECT_TRUE(mx::array_equal(again.load(copy), head).item<bool>());
  head = head + mx::array(1.0f);
  change_tensors([&](std::vector<NamedTensor>& tensors) {
    for (NamedTensor& tensor : tensors) {
      if (tensor.name == copy) tensor.value = head;
    }
  });
  EXPECT_THAT(error(), HasSubstr(copy + " is not the base's lm_head.weight"));
}

TEST(AdapterShapes, ModulesAreNamedAsPeftNamesThem) {
  const ModelShape shape = load_checkpoint(golden_model("qwen3-tied")).shape;
  const auto names = [&](const std::function<void(AdapterConfig&)>& set) {
    AdapterConfig config;
    set(config);
    std::vector<std::string> found;
    for (const AdaptedModule& module : adapter_shape(config, shape, "test").modules) found.push_back(module.name);
    return found;
  };
  EXPECT_EQ(names([](AdapterConfig& c) { c.targets.pattern = "ALL-linear"; }).size(), 14u);
  EXPECT_THAT(names([](AdapterConfig& c) { c.targets.pattern = R"(.*\.1\.mlp\.(up|down)_proj)"; }),
              ElementsAre("model.layers.1.mlp.up_proj", "model.layers.1.mlp.down_proj"));
  EXPECT_THAT(names([](AdapterConfig& c) {
                c.targets.list = {"self_attn.q_proj", "embed_tokens", "lm_head"};
                c.layers = {{1}};
              }),
              ElementsAre("model.layers.1.self_attn.q_proj", "lm_head"));
  EXPECT_THAT(names([](AdapterConfig& c) {
                c.targets.list = {"up_proj", "model.embed_tokens"};
                c.layers = {{0}};
                c.layers_pattern = {"layers"};
              }),
              ElementsAre("model.embed_tokens", "model.layers.0.mlp.up_proj"));
  EXPECT_THAT(names([](AdapterConfig& c) {
                c.targets.list = {"q_proj", "k_proj"};
                c.excluded.pattern = ".*layers.0.*";
              }),
              ElementsAre("model.layers.1.self_attn.q_proj", "model.layers.1.self_attn.k_proj"));
}

TEST(AdapterShapes, RanksAndScalesByPattern) {
  const ModelShape shape = load_checkpoint(golden_model("qwen3-tied")).shape;
  AdapterConfig config;
  config.rank = 4;
  config.alpha = 8;
  config.rslora = true;
  config.targets.list = {"q_proj", "down_proj"};
  config.rank_pattern = {{"layers.1.self_attn.q_proj", 16}, {"q_proj", 9}};
  config.alpha_pattern = {{"mlp.*", 2.0}, {".*mlp.down_proj", 3.0}};
  const std::vector<AdaptedModule> modules = adapter_shape(config, shape, "test").modules;
  ASSERT_EQ(modules.size(), 4u);
  EXPECT_EQ(modules[0].rank, 9);
  EXPECT_EQ(modules[0].scale, 8.0 / 3.0);
  EXPECT_EQ(modules[1].rank, 4);
  EXPECT_EQ(modules[1].scale, 1.0);
  EXPECT_EQ(modules[2].rank, 16);
}

TEST(NewAdapter, ChangesNothingYetAndIsDrawnFromTheSeed) {
  const Checkpoint base = load_checkpoint(golden_model("qwen3-untied"));
  AdapterConfig config;
  config.dora = true;
  config.targets.list = {"q_proj", "embed_tokens", "lm_head", "down_proj"};
  const Adapter adapter = new_adapter(config, base, 3), same = new_adapter(config, base, 3),
                other = new_adapter(config, base, 4);
  Parameters all = base.tensors;
  all.insert(all.end(), adapter.tensors.begin(), adapter.tensors.end());
  const mx::array ids({1, 2, 3, 4}, {1, 4}, mx::int32);
  const mx::array plain = Decoder(base.shape).logits(base.tensors, ids);
  EXPECT_TRUE(mx::array_equal(Decoder(base.shape, adapter.shape).logits(all, ids), plain).item<bool>());
  for (size_t i = 0; i < adapter.tensors.size(); ++i) {
    const std::string& name = adapter.layout[i].name;
    EXPECT_TRUE(mx::array_equal(adapter.tensors[i], same.tensors[i]).item<bool>()) << name;
    const bool drawn = name.ends_with(".lora_A.weight") || name.ends_with(".lora_embedding_B");
    EXPECT_NE(mx::array_equal(adapter.tensors[i], other.tensors[i]).item<bool>(), drawn) << name;
  }
  // Written in PEFT's words, it reads as itself.
  const TestFolder folder;
  save_adapter(adapter, folder / "new");
  const Adapter again = load_adapter(folder / "new", base);
  EXPECT_EQ(again.shape.modules.size(), adapter.shape.modules.size());
  EXPECT_TRUE(again.shape.dora);
}

}  // namespace
}  // namespace trunkline

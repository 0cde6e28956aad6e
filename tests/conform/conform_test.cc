// conform must fail where a case and the computation differ, and say which part.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "base/file.h"
#include "conform/adapter_case.h"
#include "conform/golden_case.h"
#include "conform/parts.h"
#include "model/safetensors.h"
#include "trunkline/error.h"

namespace trunkline::conform {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::HasSubstr;

class Conform : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    fs::copy(fs::path(TRUNKLINE_SOURCE_DIR) / "tests/golden/llama-smol", folder_, fs::copy_options::recursive);
  }
  void TearDown() override { fs::remove_all(folder_); }

  // Names of the parts that fail.
  std::set<std::string> failing() const {
    std::set<std::string> names;
    for (const PartResult& result : run_parts(read_case(folder_))) {
      if (!result.ok) names.insert(result.part);
    }
    return names;
  }

  std::string error() const {
    try {
      run_parts(read_case(folder_));
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  void change_tensor(const std::string& file, const std::string& name,
                     const std::function<mx::array(const mx::array&)>& change) const {
    const fs::path path = folder_ / (file + ".safetensors");
    std::vector<NamedTensor> tensors;
    {
      const SafetensorsFile old(path);
      for (const auto& [key, entry] : old.tensors()) {
        const mx::array value = old.load(key);
        tensors.push_back({key, key == name ? change(value) : value, value.dtype()});
      }
    }
    write_safetensors(path, tensors);
  }

  void change_case(const std::function<void(json&)>& change) const {
    json values = json::parse(read_file(folder_ / "case.json"));
    change(values);
    write_file(folder_ / "case.json", values.dump());
  }

  // `amount` added to the first entry alone.
  static std::function<mx::array(const mx::array&)> nudge(float amount) {
    return [amount](const mx::array& x) {
      const mx::array flat = mx::reshape(x, {-1});
      const int rest = static_cast<int>(x.size()) - 1;
      const mx::array first = mx::array({amount});
      return mx::reshape(flat + mx::concatenate({first, mx::zeros({rest})}), x.shape());
    };
  }

  fs::path folder_ = fs::temp_directory_path() / fmt::format("trunkline-conform-{}", ::getpid());
};

using Names = std::set<std::string>;

TEST_F(Conform, PassesAGoldenCase) { EXPECT_EQ(failing(), Names{}); }

TEST_F(Conform, EachPartFailsAlone) {
  change_tensor("forward", "logits", nudge(2e-4f));
  EXPECT_EQ(failing(), Names{"logits"});
  change_tensor("forward", "loss", nudge(1e-4f));
  EXPECT_EQ(failing(), (Names{"logits", "loss", "gradients layer by layer"}));
  change_tensor("grads", "model.layers.1.mlp.up_proj.weight", nudge(1e-4f));
  EXPECT_EQ(failing(), (Names{"logits", "loss", "gradients", "gradients layer by layer"}));
}

TEST_F(Conform, WeightsAfterAdamwHaveTwoBounds) {
  change_tensor("after-adamw", "model.norm.weight", nudge(1e-3f));
  EXPECT_EQ(failing(), Names{}) << "one entry may be off by less than 2e-3";
  change_tensor("after-adamw", "model.norm.weight", nudge(2e-3f));
  EXPECT_EQ(failing(), Names{"weights after adamw"});
  SetUp();
  change_tensor("after-adamw", "model.embed_tokens.weight", [](const mx::array& x) { return x + mx::array(2e-5f); });
  EXPECT_EQ(failing(), Names{"weights after adamw"}) << "a fifth of all entries may not be off by 2e-5";
}

TEST_F(Conform, WeightsAfterSgdAndNumbersOfTheCase) {
  change_tensor("after-sgd", "model.norm.weight", nudge(3e-5f));
  EXPECT_EQ(failing(), Names{"weights after sgd"});
  SetUp();
  change_case([](json& values) {
    values["grad_norm"] = values["grad_norm"].get<double>() * 1.001;
    values["losses"]["adamw-clip"][3] = 3.7;
    values["losses"]["sgd-momentum"][0] = 5;
    values["greedy"]["tokens"][15] = 1;
  });
  EXPECT_EQ(failing(), (Names{"gradient norm", "losses along adamw-clip", "losses along sgd-momentum", "greedy"}));
}

TEST_F(Conform, OptimizersAreTakenFromTheText) {
  change_case([](json& values) { values["optimizers"]["sgd"] = "lr 0.4, 3 steps"; });
  EXPECT_EQ(failing(), (Names{"losses along sgd", "weights after sgd"}));
}

TEST_F(Conform, NotANumberNeverPasses) {
  change_tensor("forward", "logits", nudge(std::nanf("")));
  change_tensor("after-adamw", "model.norm.weight", nudge(std::nanf("")));
  EXPECT_EQ(failing(), (Names{"logits", "weights after adamw"}));
}

TEST_F(Conform, PaddedPositionsAreNotCompared) {
  fs::remove_all(folder_);
  fs::copy(fs::path(TRUNKLINE_SOURCE_DIR) / "tests/golden/qwen2-bias", folder_, fs::copy_options::recursive);
  const GoldenCase golden = read_case(folder_);
  ASSERT_EQ(golden.ids.back(), 0) << "this case has padding";
  change_tensor("forward", "logits", [&](const mx::array& x) {
    const mx::array padded = mx::array(golden.ids.begin(), {golden.rows, golden.length, 1}, mx::int32) == mx::array(0);
    return mx::where(padded, mx::array(1e9f), x);
  });
  EXPECT_EQ(failing(), Names{});
}

TEST_F(Conform, MalformedCasesAreNamed) {
  change_case([](json& values) { values["losses"]["sgd"].erase(0); });
  EXPECT_THAT(error(), HasSubstr("case.json: losses.sgd: 3 losses for 3 steps"));
  change_case([](json& values) { values["losses"].erase("sgd"); });
  EXPECT_THAT(error(), HasSubstr("case.json"));
  SetUp();
  fs::remove(folder_ / "grads.safetensors");
  EXPECT_THAT(error(), HasSubstr("grads.safetensors"));
  SetUp();
  change_tensor("after-sgd", "model.norm.weight", [](const mx::array&) { return mx::zeros({35}); });
  EXPECT_THAT(error(), HasSubstr("model.norm.weight: wrong shape"));
  SetUp();
  write_file(folder_ / "forward.safetensors", "short");
  EXPECT_THAT(error(), HasSubstr("forward.safetensors: damaged"));
  fs::remove(folder_ / "model/model.safetensors");
  EXPECT_THAT(error(), HasSubstr("model.safetensors"));
  fs::remove_all(folder_);
  EXPECT_THAT(error(), HasSubstr("not a directory"));
}

// A golden adapter, with its base where the case looks for it.
class ConformAdapter : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::remove_all(folder_);
    const fs::path tests = fs::path(TRUNKLINE_SOURCE_DIR) / "tests";
    fs::create_directories(folder_ / "golden");
    fs::create_directories(folder_ / "golden-lora");
    fs::copy(tests / "golden/qwen3-untied", folder_ / "golden/qwen3-untied", fs::copy_options::recursive);
    fs::copy(tests / "golden-lora/lora-qwen3", path(), fs::copy_options::recursive);
  }
  void TearDown() override { fs::remove_all(folder_); }
  fs::path path() const { return folder_ / "golden-lora/case"; }

  std::set<std::string> failing() const {
    std::set<std::string> names;
    for (const PartResult& result : run_parts(read_adapter_case(path()))) {
      if (!result.ok) names.insert(result.part);
    }
    return names;
  }
  std::string error() const {
    try {
      run_parts(read_adapter_case(path()));
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing was thrown";
  }
  // Adds `amount` to every entry of the file's tensor `name`.
  void shift(const std::string& file, const std::string& name, float amount) const {
    std::vector<NamedTensor> tensors;
    {
      const SafetensorsFile old(path() / file);
      for (const auto& [key, entry] : old.tensors()) {
        const mx::array value = old.load(key);
        tensors.push_back({key, key == name ? value + mx::array(amount) : value, value.dtype()});
      }
    }
    write_safetensors(path() / file, tensors);
  }

  fs::path folder_ = fs::temp_directory_path() / fmt::format("trunkline-conform-{}", ::getpid());
};

TEST_F(ConformAdapter, EachPartFailsAlone) {
  EXPECT_EQ(failing(), Names{});
  shift("forward.safetensors", "logits", 2e-4f);
  EXPECT_EQ(failing(), Names{"logits"});
  SetUp();
  shift("after.safetensors", "merged_logits", 2e-4f);
  EXPECT_EQ(failing(), Names{"merged logits"});
  SetUp();
  shift("after.safetensors", "logits", std::nanf(""));
  EXPECT_EQ(failing(), Names{"logits after"});
  SetUp();
  shift("grads.safetensors", "base_model.model.model.layers.2.mlp.gate_proj.lora_B.default.weight", 1e-3f);
  EXPECT_EQ(failing(), (Names{"gradients", "gradients layer by layer"}));
  SetUp();
  shift("after/adapter_model.safetensors", "base_model.model.model.layers.2.mlp.gate_proj.lora_B.weight", 1e-4f);
  EXPECT_THAT(failing(), ::testing::Contains("adapter after adamw"));
  SetUp();
  json values = json::parse(read_file(path() / "case.json"));
  values["losses"][2] = values["losses"][2].get<double>() * 1.001;
  values["trainable"] = 4031;
  write_file(path() / "case.json", values.dump());
  EXPECT_EQ(failing(), (Names{"losses along adamw", "trained parameters"}));
}

TEST_F(ConformAdapter, MalformedCasesAreNamed) {
  fs::remove(path() / "grads.safetensors");
  EXPECT_THAT(error(), HasSubstr("grads.safetensors"));
  SetUp();
  fs::remove_all(folder_ / "golden");
  EXPECT_THAT(error(), HasSubstr("golden/qwen3-untied: not a directory"));
  SetUp();
  write_file(path() / "before/adapter_model.safetensors", "short");
  EXPECT_THAT(error(), HasSubstr("adapter_model.safetensors: damaged"));
  SetUp();
  write_file(path() / "case.json", "{}");
  EXPECT_THAT(error(), HasSubstr("case.json"));
}

TEST(ReadRun, UnderstandsItsSentences) {
  GoldenRun run = read_run("adamw",
                           "AdamW lr 3e-4, betas 0.8, 0.99, eps 1e-6, decoupled weight decay 0.05 on every "
                           "parameter, bias correction, global gradient norm clipped to 1.5, 7 steps");
  EXPECT_EQ(run.optimizer, (OptimizerOptions{.kind = OptimizerOptions::Kind::adamw,
                                             .weight_decay = 0.05,
                                             .momentum = 0,
                                             .beta1 = 0.8,
                                             .beta2 = 0.99,
                                             .epsilon = 1e-6}));
  EXPECT_EQ(run.learning_rate, 3e-4);
  EXPECT_EQ(run.max_norm, 1.5);
  EXPECT_EQ(run.steps, 7);
  run = read_run("sgd-momentum", "lr .1, momentum 0.7, weight decay 0.3 (added to the gradient), 1 step");
  EXPECT_EQ(run.optimizer.kind, OptimizerOptions::Kind::sgd);
  EXPECT_EQ(run.optimizer.momentum, 0.7);
  EXPECT_EQ(run.optimizer.weight_decay, 0.3);
  EXPECT_EQ(run.learning_rate, 0.1);
  for (const char* unclear : {"", "lr 0.1", "3 steps", "lr 0.1, nesterov, 3 steps", "lr fast, 3 steps",
                              "lr 0.1, momentum, 3 steps", "lr 0.1, 3 steps more"}) {
    EXPECT_THROW(read_run("sgd", unclear), Error) << unclear;
  }
}

}  // namespace
}  // namespace trunkline::conform

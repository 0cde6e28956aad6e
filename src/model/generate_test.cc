#include "model/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/golden_model_test.h"

namespace trunkline {
namespace {

using namespace testing_model;
using ::testing::HasSubstr;

struct Model {
  explicit Model(const std::string& name) : checkpoint(load_checkpoint(golden_model(name))), decoder(checkpoint.shape) {
    const auto json = nlohmann::json::parse(read_file(golden_model(name).parent_path() / "case.json"));
    prompt = json["greedy"]["prompt"].get<std::vector<int32_t>>();
    continuation = json["greedy"]["tokens"].get<std::vector<int32_t>>();
  }
  std::vector<int32_t> run(const GenerateOptions& options, const std::function<bool(int32_t)>& on_token = {}) const {
    return generate(decoder, checkpoint.tensors, prompt, options, on_token);
  }
  Checkpoint checkpoint;
  Decoder decoder;
  std::vector<int32_t> prompt, continuation;
};

TEST(Generate, GreedyIsWhatTransformersContinues) {
  for (const char* name : {"qwen3-untied", "llama3-rope"}) {
    const Model model(name);
    EXPECT_EQ(model.run({.max_tokens = static_cast<int>(model.continuation.size()), .stop = {}}), model.continuation);
  }
}

TEST(Generate, StopsAtItsTokensTheLimitAndTheCallersWord) {
  const Model model("llama3-rope");
  // This continuation reaches 2, the end token, at its ninth place.
  ASSERT_EQ(model.continuation[8], 2);
  const std::vector<int32_t> before(model.continuation.begin(), model.continuation.begin() + 8);
  EXPECT_EQ(model.run({.max_tokens = 16, .stop = {99, 2}}), before);
  EXPECT_EQ(model.run({.max_tokens = 8, .stop = {}}), before);
  EXPECT_TRUE(model.run({.max_tokens = 0, .stop = {}}).empty());
  std::vector<int32_t> seen;
  const auto three = [&](int32_t token) {
    seen.push_back(token);
    return seen.size() < 3;
  };
  EXPECT_EQ(model.run({.max_tokens = 16, .stop = {}}, three).size(), 3u);
  EXPECT_EQ(seen, std::vector<int32_t>(before.begin(), before.begin() + 3));
}

TEST(Generate, SamplesAreOfTheirSeed) {
  const Model model("llama-smol");
  const GenerateOptions options{.max_tokens = 12, .temperature = 1.5, .seed = 5, .stop = {}};
  const std::vector<int32_t> first = model.run(options);
  EXPECT_EQ(first.size(), 12u);
  EXPECT_EQ(model.run(options), first);
  GenerateOptions other = options;
  other.seed = 6;
  EXPECT_NE(model.run(other), first);
}

TEST(Generate, SamplesFollowTheTemperature) {
  const Model model("llama-smol");
  constexpr int kDraws = 600;
  constexpr double kTemperature = 0.5;
  const int length = static_cast<int>(model.prompt.size());
  const mx::array logits =
      model.decoder.logits(model.checkpoint.tensors, mx::array(model.prompt.begin(), {1, length}, mx::int32));
  mx::array odds = mx::softmax(mx::slice(logits, {0, length - 1, 0}, logits.shape()) / mx::array(kTemperature), -1);
  odds = mx::astype(odds, mx::float32);
  odds.eval();
  std::vector<int> drawn(odds.size());
  for (int i = 0; i < kDraws; ++i) {
    const auto seed = static_cast<uint64_t>(i);
    ++drawn[static_cast<size_t>(
        model.run({.max_tokens = 1, .temperature = kTemperature, .seed = seed, .stop = {}})[0])];
  }
  for (size_t id = 0; id < drawn.size(); ++id) {
    const double p = odds.data<float>()[id];
    const double deviation = std::sqrt(kDraws * p * (1 - p));
    EXPECT_NEAR(drawn[id], kDraws * p, 5 * deviation + 1) << id;
  }
}

TEST(Generate, RefusesWhatItCannotContinue) {
  const Model model("llama-smol");
  const auto error = [&](std::vector<int32_t> prompt, const GenerateOptions& options) {
    return error_of([&] { generate(model.decoder, model.checkpoint.tensors, prompt, options); });
  };
  EXPECT_THAT(error({}, {.stop = {}}), HasSubstr("the prompt is empty"));
  EXPECT_THAT(error({5, 131}, {.stop = {}}), HasSubstr("token 131 of the prompt is beyond the model's 131 embeddings"));
  EXPECT_THAT(error({-1}, {.stop = {}}), HasSubstr("token -1"));
  EXPECT_THAT(error({5}, {.temperature = -1, .stop = {}}), HasSubstr("temperature"));
  Parameters broken = model.checkpoint.tensors;
  broken.back() = broken.back() * mx::array(std::nanf(""));
  EXPECT_THAT(error_of([&] { generate(model.decoder, broken, {5}, {.stop = {}}); }), HasSubstr("not finite"));
}

}  // namespace
}  // namespace trunkline

// Rows packed into one sequence train as they do alone.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "base/random.h"
#include "model/golden_model_test.h"
#include "train/layerwise.h"
#include "train/loss.h"

namespace trunkline {
namespace {

using testing_model::golden_model;

struct Row {
  std::vector<int32_t> ids;
  std::vector<uint8_t> targets;
  RowView view() const { return {ids, targets, std::count(targets.begin(), targets.end(), 1)}; }
};

std::vector<Row> rows_of(int64_t vocab) {
  Random random(3);
  std::vector<Row> rows;
  for (const int length : {13, 2, 7, 1, 21, 5, 9}) {
    Row& row = rows.emplace_back();
    for (int i = 0; i < length; ++i) {
      row.ids.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(vocab))));
      row.targets.push_back(i > 0 && (i == 1 || random.below(3) > 0));
    }
  }
  return rows;
}

// Seven rows in three sequences, one of them a row alone.
Batch packed(const std::vector<Row>& rows) {
  const auto view = [&](size_t i) { return rows[i].view(); };
  return make_batch(
      std::vector<std::vector<RowView>>{{view(0), view(1), view(2), view(3)}, {view(4)}, {view(5), view(6)}});
}

struct Result {
  double loss = 0.0;
  Parameters gradients;
};

// Each row a graph of its own.
Result alone(const Decoder& decoder, const Parameters& parameters, const std::vector<Row>& rows) {
  Result result;
  const Trained all = Trained::all(parameters.size());
  for (const mx::array& tensor : parameters) result.gradients.push_back(mx::zeros_like(tensor));
  for (const Row& row : rows) {
    if (row.view().target_count == 0) continue;
    auto [loss, gradients] = loss_and_gradients(decoder, parameters, all, make_batch(std::vector<RowView>{row.view()}));
    result.loss += loss.item<float>();
    for (size_t i = 0; i < gradients.size(); ++i) result.gradients[i] = result.gradients[i] + gradients[i];
    mx::eval(result.gradients);
  }
  return result;
}

void expect_equal(const Decoder& decoder, const Result& result, const Result& expected) {
  EXPECT_NEAR(result.loss, expected.loss, 1e-5 * expected.loss);
  ASSERT_EQ(result.gradients.size(), expected.gradients.size());
  for (size_t i = 0; i < expected.gradients.size(); ++i) {
    const double largest = mx::max(mx::abs(expected.gradients[i])).item<float>();
    const double furthest = mx::max(mx::abs(result.gradients[i] - expected.gradients[i])).item<float>();
    EXPECT_LT(furthest, 2e-5 * largest) << decoder.layout()[i].name;
  }
}

class Packing : public ::testing::TestWithParam<const char*> {};

TEST_P(Packing, LossAndGradientsAreThoseOfTheRowsAlone) {
  const Checkpoint checkpoint = load_checkpoint(golden_model(GetParam()));
  const Decoder decoder(checkpoint.shape);
  const Parameters parameters = cast(checkpoint.tensors, mx::float32);
  const Trained all = Trained::all(parameters.size());
  const std::vector<Row> rows = rows_of(decoder.shape().vocab);
  const Batch batch = packed(rows);
  const Result expected = alone(decoder, parameters, rows);
  {
    SCOPED_TRACE("whole graph");
    auto [loss, gradients] = loss_and_gradients(decoder, parameters, all, batch);
    expect_equal(decoder, {loss.item<float>(), std::move(gradients)}, expected);
    EXPECT_NEAR(summed_loss(decoder, parameters, batch).item<float>(), expected.loss, 1e-5 * expected.loss);
  }
  const int64_t vocab = decoder.shape().vocab, tokens = batch.ids.shape(1);
  // Blocks that end within a row, with it, and of single tokens.
  const std::vector<StepBlocks> cuts = {
      {tokens, tokens, batch.target_count, vocab}, {1, 1, 1, vocab}, {12, 13, 10, vocab}, {5, 4, 7, 50}};
  for (const StepBlocks& cut : cuts) {
    SCOPED_TRACE(fmt::format("queries {} tokens {}", cut.queries, cut.tokens));
    LayerwisePass pass(decoder, parameters, all, batch, cut);
    Result result;
    result.loss = pass.forward();
    std::vector<std::vector<mx::array>> parts(parameters.size());
    pass.backward([&](const Piece& piece, std::vector<mx::array> gradients) {
      for (size_t i = 0; i < gradients.size(); ++i) parts[piece.rows[i].tensor].push_back(gradients[i]);
    });
    for (const auto& part : parts) result.gradients.push_back(mx::concatenate(part, 0));
    expect_equal(decoder, result, expected);
    EXPECT_NEAR(LayerwisePass(decoder, parameters, all, batch, cut).loss(), expected.loss, 1e-5 * expected.loss);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Packing,
                         ::testing::Values("llama-biases", "llama-linear", "llama-smol", "llama3-rope", "qwen2-bias",
                                           "qwen3-tied", "qwen3-untied", "qwen3-yarn"));

}  // namespace
}  // namespace trunkline

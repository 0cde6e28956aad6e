#include "train/layerwise.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <iterator>
#include <list>
#include <map>
#include <set>

#include "model/golden_model_test.h"

namespace trunkline {
namespace {

using testing_model::golden_model;

constexpr const char* kModels[] = {"llama-biases", "llama-smol", "qwen2-bias", "qwen3-tied", "qwen3-untied"};

// Rows of 2, 11, 20, 29 tokens, some of them targets; from the `first` of them on.
Batch batch_of(int64_t vocab, int rows, int first = 0) {
  static std::vector<std::vector<int32_t>> ids;
  static std::vector<std::vector<uint8_t>> targets;
  ids.clear();
  targets.clear();
  std::vector<RowView> views;
  for (int r = first; r < first + rows; ++r) {
    auto& row = ids.emplace_back();
    auto& marked = targets.emplace_back();
    for (int i = 0; i < 2 + r * 9; ++i) {
      row.push_back(static_cast<int32_t>((i * 7 + r * 13 + i * i) % (vocab - 1) + 1));
      marked.push_back(i > 0 && (i + r) % 4 != 0);
    }
    marked[1] = 1;
  }
  for (int r = 0; r < rows; ++r) {
    views.push_back({.ids = ids[static_cast<size_t>(r)], .targets = targets[static_cast<size_t>(r)]});
  }
  return make_batch(views);
}

Trained all_of(const Decoder& decoder) { return Trained::all(decoder.layout().size()); }

struct Result {
  double loss;
  Parameters gradients;
};

// The whole gradients of the trained tensors, put together from the pieces.
Result layerwise(const Decoder& decoder, const Parameters& parameters, const Trained& trained, const Batch& batch,
                 const StepBlocks& blocks) {
  LayerwisePass pass(decoder, parameters, trained, batch, blocks);
  Result result{pass.forward(), {}};
  std::map<size_t, std::vector<mx::array>> rows;
  const std::vector<Piece> expected = pieces_of(decoder, trained, blocks.vocab_rows);
  size_t at = 0;
  pass.backward([&](const Piece& piece, std::vector<mx::array> gradients) {
    EXPECT_EQ(piece, expected.at(at++));
    EXPECT_EQ(piece.rows.size(), gradients.size());
    for (size_t i = 0; i < piece.rows.size(); ++i) {
      EXPECT_EQ(gradients[i].dtype(), mx::float32);
      EXPECT_EQ(gradients[i].shape(0), piece.rows[i].rows);
      rows[piece.rows[i].tensor].push_back(gradients[i]);
    }
  });
  EXPECT_EQ(at, expected.size());
  for (auto& [tensor, parts] : rows) {
    EXPECT_EQ(tensor, trained.tensors().at(result.gradients.size()));
    result.gradients.push_back(mx::concatenate(parts, 0));
  }
  mx::eval(result.gradients);
  return result;
}

double furthest(const mx::array& a, const mx::array& b) { return mx::max(mx::abs(a - b)).item<float>(); }

TEST(Layerwise, PiecesCoverEveryTensorOnce) {
  for (const char* name : kModels) {
    const Decoder decoder(load_checkpoint(golden_model(name)).shape);
    for (const int64_t step : {int64_t{1}, int64_t{50}, decoder.shape().vocab, decoder.shape().vocab + 5}) {
      std::map<size_t, int64_t> next;
      for (const Piece& piece : pieces_of(decoder, all_of(decoder), step)) {
        for (const TensorRows& rows : piece.rows) {
          EXPECT_EQ(rows.row, next[rows.tensor]);
          next[rows.tensor] += rows.rows;
        }
      }
      ASSERT_EQ(next.size(), decoder.layout().size());
      for (const auto& [tensor, rows] : next) EXPECT_EQ(rows, decoder.layout()[tensor].dims.front());
    }
  }
}

TEST(Layerwise, GradientsAreThoseOfTheWholeGraph) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    const Parameters parameters = cast(checkpoint.tensors, mx::float32);
    const Batch batch = batch_of(decoder.shape().vocab, 4);
    LossAndGradients whole = loss_and_gradients(decoder, parameters, all_of(decoder), batch);
    whole.loss.eval();
    const int64_t vocab = decoder.shape().vocab, tokens = batch.ids.shape(1);
    const std::vector<StepBlocks> cuts = {{tokens, tokens, batch.target_count, vocab},
                                          {1, 1, 1, vocab},
                                          {7, 5, 3, 10},
                                          {tokens - 1, tokens + 1, 1000, 33},
                                          {4, tokens, 11, vocab},
                                          {tokens, 6, batch.target_count, vocab - 1}};
    for (const StepBlocks& cut : cuts) {
      SCOPED_TRACE(
          fmt::format("queries {} tokens {} logits {} vocab {}", cut.queries, cut.tokens, cut.logits, cut.vocab_rows));
      const Result result = layerwise(decoder, parameters, all_of(decoder), batch, cut);
      EXPECT_NEAR(result.loss, whole.loss.item<float>(), 1e-5 * result.loss);
      ASSERT_EQ(result.gradients.size(), whole.gradients.size());
      for (size_t i = 0; i < whole.gradients.size(); ++i) {
        const double largest = mx::max(mx::abs(whole.gradients[i])).item<float>();
        EXPECT_LT(furthest(result.gradients[i], whole.gradients[i]), 2e-5 * largest) << decoder.layout()[i].name;
      }
      EXPECT_NEAR(LayerwisePass(decoder, parameters, all_of(decoder), batch, cut).loss(), result.loss,
                  1e-5 * result.loss);
    }
  }
}

// Frozen tensors have no gradient, layers below the lowest trained one no backward pass, and the others' gradients are
// what they are when all is trained.
TEST(Layerwise, FrozenTensorsAreLeftOut) {
  for (const char* name : {"qwen3-tied", "qwen3-untied"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    const Parameters parameters = cast(checkpoint.tensors, mx::float32);
    const Batch batch = batch_of(decoder.shape().vocab, 3);
    const StepBlocks blocks{5, 7, 9, 20};
    const Result all = layerwise(decoder, parameters, all_of(decoder), batch, blocks);
    const auto only = [&](const std::vector<int>& tensors) {
      std::vector<bool> mask(decoder.layout().size());
      for (const int tensor : tensors) mask[static_cast<size_t>(tensor)] = true;
      return Trained(std::move(mask));
    };
    const int64_t last = decoder.shape().layers - 1;
    const int up = decoder.stage_tensors(last, Stage::mlp_input).back();
    const int query = decoder.stage_tensors(0, Stage::heads).front();
    for (const Trained& trained :
         {only({up}), only({query}), only({query, up}), only({decoder.embedding_index()}), only({decoder.head_index()}),
          only({decoder.norm_index(), up}), only({decoder.head_index(), query})}) {
      const Result some = layerwise(decoder, parameters, trained, batch, blocks);
      EXPECT_EQ(some.loss, all.loss);
      ASSERT_EQ(some.gradients.size(), trained.tensors().size());
      LossAndGradients whole = loss_and_gradients(decoder, parameters, trained, batch);
      ASSERT_EQ(whole.gradients.size(), trained.tensors().size());
      for (size_t i = 0; i < some.gradients.size(); ++i) {
        const size_t tensor = trained.tensors()[i];
        EXPECT_TRUE(mx::array_equal(some.gradients[i], all.gradients[tensor]).item<bool>())
            << decoder.layout()[tensor].name;
        const double largest = mx::max(mx::abs(whole.gradients[i])).item<float>();
        EXPECT_LT(furthest(some.gradients[i], whole.gradients[i]), 2e-5 * largest) << decoder.layout()[tensor].name;
      }
    }
  }
}

// What is kept enters speed and memory alone.
TEST(Layerwise, WhatIsKeptChangesNoBit) {
  for (const char* name : {"llama-biases", "qwen3-tied"}) {
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    const Parameters parameters = cast(checkpoint.tensors, mx::float32);
    const Batch batch = batch_of(decoder.shape().vocab, 3);
    StepBlocks blocks{5, 7, 9, 20};
    const Result least = layerwise(decoder, parameters, all_of(decoder), batch, blocks);
    const int64_t layers = decoder.shape().layers;
    const int64_t none = 0, one = 1;
    for (const auto& [all, products, attention] : {std::array{layers, none, none},
                                                   {none, layers, none},
                                                   {none, none, layers},
                                                   {one, layers - 1, none},
                                                   {none, one, layers - 1}}) {
      blocks.keep_all = all;
      blocks.keep_products = products;
      blocks.keep_attention = attention;
      const Result kept = layerwise(decoder, parameters, all_of(decoder), batch, blocks);
      EXPECT_EQ(kept.loss, least.loss);
      for (size_t i = 0; i < kept.gradients.size(); ++i) {
        EXPECT_TRUE(mx::array_equal(kept.gradients[i], least.gradients[i]).item<bool>()) << decoder.layout()[i].name;
      }
    }
  }
}

// A piece's tensors may change once it has been handed over: nothing later is made of them.
TEST(Layerwise, TensorsThatWereHandedOverMayChange) {
  for (const char* name : {"llama-biases", "qwen3-tied", "qwen3-untied"}) {
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    Parameters parameters = cast(checkpoint.tensors, mx::float32);
    const Batch batch = batch_of(decoder.shape().vocab, 3);
    for (const int64_t vocab_rows : {decoder.shape().vocab, int64_t{40}}) {
      const StepBlocks blocks{9, 7, 11, vocab_rows};
      const Result calm = layerwise(decoder, parameters, all_of(decoder), batch, blocks);
      Parameters changing = parameters;
      LayerwisePass pass(decoder, changing, all_of(decoder), batch, blocks);
      pass.forward();
      pass.backward([&](const Piece& piece, const std::vector<mx::array>& gradients) {
        for (size_t i = 0; i < piece.rows.size(); ++i) {
          const auto& [tensor, row, rows] = piece.rows[i];
          const int begin = static_cast<int>(row), end = static_cast<int>(row + rows);
          EXPECT_TRUE(mx::array_equal(gradients[i], part(calm.gradients[tensor], 0, begin, end)).item<bool>())
              << name << " " << decoder.layout()[tensor].name;
          mx::Shape from(gradients[i].ndim(), 0), to = changing[tensor].shape();
          from[0] = begin;
          to[0] = end;
          changing[tensor] = mx::slice_update(changing[tensor], mx::full(gradients[i].shape(), 7.0f), from, to);
          changing[tensor].eval();
        }
      });
    }
  }
}

// Passes of rows of several lengths, one after another forwards and together backwards: no more padding than each has.
TEST(Layerwise, PassesOfOneStepAddUp) {
  for (const char* name : kModels) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = load_checkpoint(golden_model(name));
    const Decoder decoder(checkpoint.shape);
    const Parameters parameters = cast(checkpoint.tensors, mx::float32);
    const Trained all = all_of(decoder);
    const Batch whole = batch_of(decoder.shape().vocab, 4);
    const Batch batches[] = {batch_of(decoder.shape().vocab, 1, 3), batch_of(decoder.shape().vocab, 2, 1),
                             batch_of(decoder.shape().vocab, 1, 0)};
    for (const int64_t vocab_rows : {decoder.shape().vocab, int64_t{33}}) {
      const StepBlocks blocks{9, 7, 11, vocab_rows};
      const Result expected = layerwise(decoder, parameters, all, whole, blocks);
      std::list<LayerwisePass> passes;
      double loss = 0.0;
      for (const Batch& batch : batches) {
        passes.emplace_back(decoder, parameters, all, batch, blocks);
        if (passes.size() > 1) passes.back().go_on_from(*std::prev(passes.end(), 2));
        loss += passes.back().forward();
      }
      EXPECT_NEAR(loss, expected.loss, 1e-5 * loss);
      for (const Piece& piece : pieces_of(decoder, all, vocab_rows)) {
        std::vector<mx::array> gradients;
        for (auto pass = passes.rbegin(); pass != passes.rend(); ++pass) {
          gradients = pass->gradients_of(piece, std::move(gradients));
        }
        ASSERT_EQ(gradients.size(), piece.rows.size());
        for (size_t i = 0; i < gradients.size(); ++i) {
          const auto& [tensor, row, rows] = piece.rows[i];
          const mx::array& right = expected.gradients[tensor];
          const double largest = mx::max(mx::abs(right)).item<float>();
          EXPECT_LT(furthest(gradients[i], part(right, 0, static_cast<int>(row), static_cast<int>(row + rows))),
                    2e-5 * largest)
              << decoder.layout()[tensor].name;
        }
      }
    }
  }
}

TEST(Layerwise, ZerosHaveTheSamePieces) {
  const Decoder decoder(load_checkpoint(golden_model("qwen3-untied")).shape);
  std::vector<Piece> pieces;
  hand_over_zeros(decoder, all_of(decoder), 30, [&](const Piece& piece, const std::vector<mx::array>& gradients) {
    pieces.push_back(piece);
    for (size_t i = 0; i < piece.rows.size(); ++i) {
      EXPECT_EQ(gradients[i].shape(0), piece.rows[i].rows);
      EXPECT_EQ(mx::max(mx::abs(gradients[i])).item<float>(), 0.0f);
    }
  });
  EXPECT_EQ(pieces, pieces_of(decoder, all_of(decoder), 30));
}

}  // namespace
}  // namespace trunkline

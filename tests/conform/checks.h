// What every kind of case checks: arrays computed here against arrays written there.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "conform/golden_case.h"
#include "conform/parts.h"
#include "model/decoder.h"
#include "train/loss.h"
#include "train/trained.h"

namespace trunkline::conform {

// |value - expected| / |expected|; infinite unless both are finite: no comparison lets a NaN pass.
double relative(double value, double expected);
// A part's result: good if `worst` is at most `tolerance`.
PartResult within(std::string part, double worst, double tolerance, std::string note = "");
// Calls visit(|a - b|, index) for every entry of two f32 arrays of one shape; infinite unless both are finite.
void for_each_difference(const mx::array& a, const mx::array& b, const std::function<void(double, size_t)>& visit);

// The case's rows whole: a target is predicted one position before it.
Batch to_batch(const GoldenCase& golden);

// The mean loss and its gradients, parallel to the trained tensors.
LossAndGradients mean_loss_and_gradients(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                                         const Batch& batch);

// Logits [B, L, V] where there is no padding.
PartResult check_logits(const std::string& part, const GoldenCase& golden, const mx::array& logits,
                        const mx::array& expected);

// The mean loss, in training and in validation.
PartResult check_loss(const Decoder& decoder, const Parameters& parameters, const Batch& batch, double loss,
                      double expected);

// Gradients of the mean loss; `expected` is parallel to the trained tensors, as in what follows.
PartResult check_gradients(const Decoder& decoder, const Trained& trained, const std::vector<mx::array>& gradients,
                           const std::vector<mx::array>& expected);

// The layer-wise pass, in blocks of every kind of size: whole, single, ones that do not divide the length; with all
// kept and nothing. The worst of loss and gradients over all of them.
PartResult check_layerwise(const Decoder& decoder, const Parameters& parameters, const Trained& trained,
                           const Batch& batch, double expected_loss, const std::vector<mx::array>& expected);

// Trains as the run says; `weights` become what it leaves.
PartResult check_run(const GoldenRun& run, const Decoder& decoder, const Trained& trained, const Batch& batch,
                     Parameters& weights);

// Weights after AdamW. The sign of a tiny gradient decides a whole step of Adam's, so a few entries may be further off.
PartResult check_adamw_weights(const std::string& part, const std::vector<mx::array>& weights,
                               const std::vector<mx::array>& expected);

}  // namespace trunkline::conform

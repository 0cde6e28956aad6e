#include "train/run_state.h"

namespace trunkline {

bool BestLoss::take(int64_t at_step, double new_loss, double threshold) {
  if (loss && !(new_loss < *loss - threshold)) {
    ++worse_since;
    return false;
  }
  loss = new_loss;
  step = at_step;
  worse_since = 0;
  return true;
}

nlohmann::ordered_json to_json(const RunState& state) {
  nlohmann::ordered_json json = {{"step", state.step},
                                 {"trained_tokens", state.trained_tokens},
                                 {"skipped_steps", state.skipped_steps},
                                 {"memory_limits", state.memory_limits},
                                 {"losses", state.losses},
                                 {"grad_norms", state.grad_norms}};
  if (state.best.loss) {
    json["best"] = {{"loss", *state.best.loss}, {"step", state.best.step}, {"worse_since", state.best.worse_since}};
  }
  return json;
}

RunState run_state_from(const nlohmann::ordered_json& json) {
  RunState state{.step = json.at("step"),
                 .trained_tokens = json.at("trained_tokens"),
                 .skipped_steps = json.value("skipped_steps", int64_t{0}),
                 .best = {},
                 .memory_limits = json.value("memory_limits", std::vector<int64_t>{}),
                 .losses = json.value("losses", std::vector<double>{}),
                 .grad_norms = json.value("grad_norms", std::vector<double>{})};
  if (const auto best = json.find("best"); best != json.end()) {
    state.best = {.loss = best->at("loss"), .step = best->at("step"), .worse_since = best->at("worse_since")};
  }
  return state;
}

}  // namespace trunkline

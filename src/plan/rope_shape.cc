#include "plan/rope_shape.h"

namespace trunkline {
namespace {

using Type = RopeShape::Type;

Type read_type(const ConfigReader& rope) {
  for (const char* key : {"rope_type", "type"}) {
    if (!rope.has(key)) continue;
    const std::string name = rope.text(key);
    if (rope.has("type") && rope.text("type") != name) {
      rope.wrong(fmt::format("rope_type {} and type {} disagree", name, rope.text("type")));
    }
    if (name == "default") return Type::standard;
    if (name == "linear") return Type::linear;
    if (name == "llama3") return Type::llama3;
    if (name == "yarn") return Type::yarn;
    rope.unsupported(key, "the types are default, linear, llama3 and yarn");
  }
  return Type::standard;
}

// yarn's optional numbers: zero stands for absent, as in transformers.
std::optional<double> nonzero(const ConfigReader& rope, const char* key) {
  if (!rope.has(key) || (rope.at(key).is_number() && rope.at(key).get<double>() == 0)) return std::nullopt;
  return rope.positive(key);
}

void read_llama3(const ConfigReader& rope, RopeShape& shape) {
  shape.factor = rope.positive("factor");
  shape.low_freq_factor = rope.positive("low_freq_factor");
  shape.high_freq_factor = rope.positive("high_freq_factor");
  if (shape.high_freq_factor <= shape.low_freq_factor) {
    rope.reject("high_freq_factor", fmt::format("is not above low_freq_factor, {}", shape.low_freq_factor));
  }
}

void read_yarn(const ConfigReader& rope, RopeShape& shape, double max_positions) {
  // An explicit null asks for the ratio of the two context lengths; a missing key is an error.
  const bool derived = rope.contains("factor") && !rope.has("factor");
  shape.factor = derived ? max_positions / shape.original_max_positions : rope.positive("factor");
  shape.beta_fast = nonzero(rope, "beta_fast").value_or(32.0);
  shape.beta_slow = nonzero(rope, "beta_slow").value_or(1.0);
  if (rope.has("attention_factor")) shape.attention_factor = rope.positive("attention_factor");
  shape.mscale = nonzero(rope, "mscale");
  shape.mscale_all_dim = nonzero(rope, "mscale_all_dim");
  shape.truncate = rope.flag_or("truncate", true);
  if (shape.theta == 1.0) rope.wrong("rope_theta 1 leaves yarn without a base");
}

// One object that names a type and its numbers; `theta` applies where it names none.
RopeShape read_object(const ConfigReader& config, const ConfigReader& rope, double theta, int64_t max_positions) {
  RopeShape shape;
  shape.type = read_type(rope);
  shape.theta = rope.positive_or("rope_theta", theta);
  if (rope.positive_or("partial_rotary_factor", 1.0) != 1.0) {
    rope.unsupported("partial_rotary_factor", "heads are rotated whole");
  }
  if (shape.type == Type::standard) return shape;
  if (shape.type == Type::linear) {
    shape.factor = rope.positive("factor");
    return shape;
  }
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const double outer = config.positive_or(kOriginal, static_cast<double>(max_positions));
  shape.original_max_positions = rope.positive_or(kOriginal, outer);
  if (config.has(kOriginal) && shape.original_max_positions != outer) {
    rope.reject(kOriginal, fmt::format("disagrees with {} at the top, {}", kOriginal, outer));
  }
  if (shape.type == Type::llama3) read_llama3(rope, shape);
  if (shape.type == Type::yarn) read_yarn(rope, shape, static_cast<double>(max_positions));
  return shape;
}

}  // namespace

RopeShape read_rope_shape(const ConfigReader& config, int64_t max_positions) {
  const double theta = config.positive_or("rope_theta", RopeShape{}.theta);
  if (!config.has("rope_parameters")) {
    if (config.has("rope_scaling")) return read_object(config, config.object("rope_scaling"), theta, max_positions);
    RopeShape shape;
    shape.theta = theta;
    return shape;
  }

  const RopeShape shape = read_object(config, config.object("rope_parameters"), theta, max_positions);
  if (config.has("rope_theta") && shape.theta != theta) {
    config.wrong(fmt::format("rope_theta {} and rope_parameters.rope_theta {} disagree: keep the right one", theta,
                             shape.theta));
  }
  if (config.has("rope_scaling") &&
      read_object(config, config.object("rope_scaling"), shape.theta, max_positions) != shape) {
    config.wrong("rope_scaling and rope_parameters disagree: keep the right one");
  }
  return shape;
}

}  // namespace trunkline

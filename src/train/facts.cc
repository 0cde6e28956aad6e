#include "train/facts.h"

#include <fmt/format.h>

#include "base/crc32c.h"

namespace trunkline {
namespace {

std::string family_name(Family family) {
  switch (family) {
    case Family::llama: return "llama";
    case Family::qwen2: return "qwen2";
    case Family::qwen3: return "qwen3";
  }
  return "";
}

std::string text_of(const RopeShape& rope) {
  const auto or_none = [](const std::optional<double>& value) { return value ? fmt::format("{}", *value) : "none"; };
  std::string text = fmt::format("theta {}", rope.theta);
  switch (rope.type) {
    case RopeShape::Type::standard: return "default, " + text;
    case RopeShape::Type::linear: return fmt::format("linear, {}, factor {}", text, rope.factor);
    case RopeShape::Type::llama3:
      return fmt::format("llama3, {}, factor {}, low {}, high {}, original {}", text, rope.factor, rope.low_freq_factor,
                         rope.high_freq_factor, rope.original_max_positions);
    case RopeShape::Type::yarn:
      return fmt::format("yarn, {}, factor {}, original {}, beta {} {}, attention {}, mscale {} {}, truncate {}", text,
                         rope.factor, rope.original_max_positions, rope.beta_fast, rope.beta_slow,
                         or_none(rope.attention_factor), or_none(rope.mscale), or_none(rope.mscale_all_dim),
                         rope.truncate);
  }
  return text;
}

std::string text_of(const Quantization& quantization) {
  const auto packed = [](const std::optional<Quantization::Packing>& packing) {
    return packing ? fmt::format("{} bits in groups of {}", packing->bits, packing->group_size) : "none";
  };
  std::string text = packed(quantization.packing);
  for (const auto& [module, packing] : quantization.modules) text += fmt::format(", {} {}", module, packed(packing));
  return text;
}

}  // namespace

std::vector<Fact> facts_of(const TrainOptions& options, bool pace) {
  std::vector<Fact> facts;
  for (const Setting& setting : settings_of(options)) {
    const bool wanted = setting.scope == Setting::Scope::run || (pace && setting.scope == Setting::Scope::pace);
    if (wanted) facts.push_back({setting.key, setting.value});
  }
  return facts;
}

std::vector<Fact> facts_of(const ModelShape& s) {
  const auto fact = [](const char* key, const auto& value) {
    return Fact{std::string("config.json: ") + key, fmt::format("{}", value)};
  };
  std::vector<Fact> facts = {fact("model_type", family_name(s.family)),
                             fact("hidden_size", s.hidden),
                             fact("intermediate_size", s.intermediate),
                             fact("num_hidden_layers", s.layers),
                             fact("num_attention_heads", s.heads),
                             fact("num_key_value_heads", s.kv_heads),
                             fact("head_dim", s.head_dim),
                             fact("vocab_size", s.vocab),
                             fact("rms_norm_eps", s.norm_eps),
                             fact("tie_word_embeddings", s.tied),
                             fact("attention_bias", fmt::format("{} {}", s.qkv_bias, s.output_bias)),
                             fact("mlp_bias", s.mlp_bias),
                             fact("rope_parameters", text_of(s.rope))};
  if (s.quantization) facts.push_back(fact("quantization", text_of(*s.quantization)));
  return facts;
}

Fact fact_of(const std::string& file, const Dataset& rows) {
  return {file, fmt::format("{} rows, checksum {:08x}", rows.rows(), rows.checksum())};
}

std::vector<Fact> facts_of(const std::vector<TensorShape>& layout, const std::vector<uint32_t>& hashes) {
  std::vector<Fact> facts;
  for (size_t i = 0; i < layout.size(); ++i) {
    facts.push_back({"weights: " + layout[i].name, fmt::format("checksum {:08x}", hashes[i])});
  }
  return facts;
}

Fact fact_of(const AdapterShape& adapter) {
  std::string text;
  for (const AdaptedModule& module : adapter.modules) {
    text += fmt::format("{} rank {} scale {}\n", module.name, module.rank, module.scale);
  }
  return {"adapter", fmt::format("{}, dropout {}, {} modules, checksum {:08x}", adapter.dora ? "DoRA" : "LoRA",
                                 adapter.dropout, adapter.modules.size(), crc32c(text.data(), text.size()))};
}

Fact fact_of_base(const std::vector<uint32_t>& hashes) {
  return {"base weights", fmt::format("checksum {:08x}", crc32c(hashes.data(), hashes.size() * sizeof(uint32_t)))};
}

}  // namespace trunkline

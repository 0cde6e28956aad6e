#include "train/fine_tune.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/fail.h"

namespace trunkline {
namespace {

bool is_outside_layers(const AdaptedModule& module) { return module.embedding || module.name == "lm_head"; }

// In the words that these settings are given in.
AdapterShape shape_of(const AdapterConfig& config, const ModelShape& shape) {
  return adapter_shape(config, shape, "lora_parameters", "keys (--lora-keys)");
}

// The numbers of the last `count` layers.
std::vector<int64_t> last_layers(int64_t count, int64_t layers) {
  if (count > layers) fail(ErrorKind::input, "num_layers: {} are asked for, the model has {}", count, layers);
  std::vector<int64_t> last(static_cast<size_t>(count == -1 ? layers : count));
  std::iota(last.begin(), last.end(), layers - std::ssize(last));
  return last;
}

}  // namespace

AdapterConfig adapter_config(const TrainOptions& options, const ModelShape& shape) {
  const LoraOptions& lora = options.lora;
  AdapterConfig config;
  config.rank = lora.rank;
  config.rslora = lora.rslora;
  config.dora = options.fine_tune == FineTune::dora;
  config.dropout = lora.dropout;
  const auto rank = static_cast<double>(lora.rank);
  config.alpha = lora.alpha.value_or(lora.scale.value_or(kDefaultLoraScale) * (lora.rslora ? std::sqrt(rank) : rank));
  config.base = options.model.string();
  config.targets.list = lora.keys;
  if (lora.keys.empty()) {
    config.targets.list = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  }
  const AdapterShape whole = shape_of(config, shape);
  if (!whole.warnings.empty()) fail(ErrorKind::input, "{}", whole.warnings.front());
  for (const AdaptedModule& module : whole.modules) {
    if (module.rank <= std::min(module.in, module.out)) continue;
    fail(ErrorKind::input, "lora_rank: {} is too much for {}, [{}, {}]: {} is the most", module.rank, module.name,
         module.out, module.in, std::min(module.in, module.out));
  }
  config.layers = last_layers(options.num_layers.value_or(std::min(kDefaultLoraLayers, shape.layers)), shape.layers);
  if (std::ssize(*config.layers) == shape.layers) {
    config.layers.reset();
    return config;
  }
  // PEFT counts layers among names that have one: embedding and head are then named whole, and so is all else.
  AdapterConfig all = config;
  all.layers.reset();
  const std::vector<AdaptedModule> found = shape_of(all, shape).modules;
  if (std::ranges::none_of(found, is_outside_layers)) return config;
  config.targets.list.clear();
  for (const AdaptedModule& module : found) {
    if (is_outside_layers(module)) config.targets.list.push_back(module.name);
  }
  if (std::ranges::all_of(found, is_outside_layers)) {
    config.layers.reset();
    return config;
  }
  AdapterConfig inside = all;
  inside.layers = config.layers;
  for (const AdaptedModule& module : shape_of(inside, shape).modules) {
    if (!is_outside_layers(module)) config.targets.list.push_back(module.name);
  }
  config.layers.reset();
  return config;
}

std::optional<Adapter> adapter_to_train(const TrainOptions& options, const Checkpoint& base) {
  if (options.fine_tune == FineTune::full) {
    if (base.shape.quantization) {
      fail(ErrorKind::unsupported,
           "{}: its weights are quantized and cannot be trained: train an adapter (--fine-tune-type lora or dora), or "
           "take the model that it was made from",
           options.model.string());
    }
    return std::nullopt;
  }
  if (options.lora.start.empty()) return new_adapter(adapter_config(options, base.shape), base, options.seed);
  Adapter adapter = load_adapter(options.lora.start, base);
  const bool dora = options.fine_tune == FineTune::dora;
  if (adapter.shape.dora != dora) {
    fail(ErrorKind::input, "adapter: {} is a {} adapter, fine_tune_type asks for {}", options.lora.start.string(),
         adapter.shape.dora ? "DoRA" : "LoRA", dora ? "dora" : "lora");
  }
  for (const AdaptedModule& module : adapter.shape.modules) {
    if (module.scale != 0.0) continue;
    fail(ErrorKind::input, "adapter: {}: its alpha makes {} nothing, and it would learn nothing",
         options.lora.start.string(), module.name);
  }
  adapter.base_copies.clear();  // what the base says itself
  adapter.base_digest = digest_of_base(base);
  for (mx::array& tensor : adapter.tensors) tensor = mx::astype(tensor, mx::float32);
  return adapter;
}

Trained trained_tensors(const TrainOptions& options, const Decoder& decoder) {
  const size_t all = decoder.layout().size();
  if (options.fine_tune == FineTune::full && !options.num_layers) return Trained::all(all);
  std::vector<bool> mask(all);
  const auto train = [&](const std::vector<int>& tensors) {
    for (const int tensor : tensors) mask[static_cast<size_t>(tensor)] = true;
  };
  if (options.fine_tune == FineTune::full) {
    for (const int64_t layer : last_layers(*options.num_layers, decoder.shape().layers)) {
      train(decoder.layer_tensors(layer));
    }
  } else {
    for (const LinearIndex* layer : decoder.adapted_layers()) train(layer->adapter_tensors());
  }
  return Trained(std::move(mask));
}

}  // namespace trunkline

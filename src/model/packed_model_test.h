// Golden checkpoints packed as MLX does it.
#pragma once

#include <mlx/mlx.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/file.h"
#include "model/golden_model_test.h"
#include "model/safetensors.h"

namespace trunkline::testing_model {

// A golden checkpoint packed, but for the down projections, whose rows are no whole groups; in `packed`, and what it
// unpacks to in `plain`.
inline void write_packed(const TestFolder& folder, const std::string& name, int bits) {
  for (const char* to : {"packed", "plain"}) fs::copy(golden_model(name), folder / to);
  const Checkpoint source = load_checkpoint(golden_model(name));
  std::vector<NamedTensor> packed, plain;
  for (size_t i = 0; i < source.layout.size(); ++i) {
    const std::string& tensor = source.layout[i].name;
    const mx::array& value = source.tensors[i];
    if (value.ndim() != 2 || tensor.find("down_proj") != std::string::npos) {
      packed.push_back({tensor, value, value.dtype()});
      plain.push_back({tensor, value, value.dtype()});
      continue;
    }
    const std::string module = tensor.substr(0, tensor.rfind('.'));
    const std::vector<mx::array> parts = mx::quantize(value, 32, bits);
    packed.push_back({module + ".weight", parts[0], mx::uint32});
    packed.push_back({module + ".scales", parts[1], parts[1].dtype()});
    packed.push_back({module + ".biases", parts[2], parts[2].dtype()});
    const mx::array again = mx::dequantize(parts[0], parts[1], parts[2], 32, bits);
    plain.push_back({tensor, again, value.dtype()});
  }
  write_safetensors(folder / "packed/model.safetensors", packed);
  write_safetensors(folder / "plain/model.safetensors", plain);
  nlohmann::json config = nlohmann::json::parse(read_file(folder / "packed/config.json"));
  config["quantization"] = {{"group_size", 32}, {"bits", bits}, {"model.layers.0.mlp.down_proj", false}};
  config["quantization_config"] = config["quantization"];
  write_file(folder / "packed/config.json", config.dump());
}

}  // namespace trunkline::testing_model

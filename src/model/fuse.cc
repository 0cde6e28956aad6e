#include "model/fuse.h"

#include <cstring>
#include <map>
#include <utility>

#include "base/fail.h"
#include "model/decoder.h"
#include "model/linear.h"

namespace trunkline {
namespace {

bool same_bytes(const mx::array& a, const mx::array& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  mx::array x = mx::contiguous(a), y = mx::contiguous(b);
  mx::eval(x, y);
  return std::memcmp(x.data<char>(), y.data<char>(), x.nbytes()) == 0;
}

}  // namespace

Checkpoint fuse(Checkpoint base, const Adapter& adapter, std::optional<mx::Dtype> dtype) {
  const Decoder decoder(base.shape, adapter.shape);
  Parameters all = std::exchange(base.tensors, {});
  all.insert(all.end(), adapter.tensors.begin(), adapter.tensors.end());
  const bool parted = base.shape.tied && (decoder.embedding_layer().adapted() || decoder.head_layer().adapted());

  Checkpoint fused = base;
  fused.shape.tied = base.shape.tied && !parted;
  if (parted) fused.config_edits.emplace_back("tie_word_embeddings", "false");
  if (std::exchange(fused.shape.quantization, std::nullopt)) {
    for (const char* key : {"quantization", "quantization_config"}) fused.config_edits.emplace_back(key, std::nullopt);
  }
  fused.layout = tensor_shapes(fused.shape);
  fused.dtypes.clear();
  std::map<std::string, const LinearIndex*> linears;  // by their weight's name
  for (const LinearIndex* at : decoder.linear_layers()) {
    const bool head = parted && at == &decoder.head_layer();
    linears[head ? "lm_head.weight" : base.layout[static_cast<size_t>(at->weight)].name] = at;
  }
  std::map<std::string, size_t> places;
  for (size_t i = 0; i < base.layout.size(); ++i) places[base.layout[i].name] = i;
  for (const TensorShape& tensor : fused.layout) {
    const auto linear = linears.find(tensor.name);
    const bool is_weight = linear != linears.end();
    const LinearIndex* const at = is_weight ? linear->second : nullptr;
    const size_t place = is_weight ? static_cast<size_t>(at->weight) : places.at(tensor.name);
    const mx::Dtype stored = base.dtypes[is_weight && at->quantized() ? static_cast<size_t>(at->scales) : place];
    fused.dtypes.push_back(dtype.value_or(stored));
    const bool changed = is_weight && (at->adapted() || at->quantized());
    const mx::array weight = changed ? merged_weight(all, *at) : all[place];
    fused.tensors.push_back(converted(tensor.name, weight, fused.dtypes.back()));
    fused.tensors.back().eval();
  }
  return fused;
}

void save_and_compare(const Checkpoint& checkpoint, const std::filesystem::path& directory,
                      std::optional<mx::Dtype> dtype) {
  save_checkpoint(checkpoint, checkpoint.tensors, directory, dtype);
  const Checkpoint reloaded = load_checkpoint(directory);
  for (size_t i = 0; i < checkpoint.tensors.size(); ++i) {
    const mx::array expected = mx::astype(checkpoint.tensors[i], dtype.value_or(checkpoint.dtypes[i]));
    if (same_bytes(reloaded.tensors[i], expected)) continue;
    fail(ErrorKind::system, "{}: {} as reloaded is not what was saved", directory.string(), checkpoint.layout[i].name);
  }
}

}  // namespace trunkline

#include <cstring>
#include <nlohmann/json.hpp>
#include <random>

#include "base/fail.h"
#include "base/file.h"
#include "conform/adapter_case.h"
#include "conform/checks.h"
#include "conform/parts.h"
#include "model/decoder.h"

namespace trunkline::conform {
namespace {

namespace fs = std::filesystem;

class Scratch {
 public:
  Scratch() : path_(fs::temp_directory_path() / fmt::format("trunkline_conform_{:08x}", std::random_device()())) {}
  ~Scratch() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

bool same(const SafetensorsFile& a, const SafetensorsFile& b, const std::string& name) {
  if (!a.tensors().contains(name) || !b.tensors().contains(name)) return false;
  mx::array x = a.load(name), y = b.load(name);
  return x.dtype() == y.dtype() && x.shape() == y.shape() &&
         std::memcmp(x.data<char>(), y.data<char>(), x.nbytes()) == 0;
}

// PEFT's files, read and written again.
PartResult check_files(const AdapterCase& golden) {
  double different = 0;
  bool same_bytes = true;
  for (const auto& [name, adapter] : {std::pair("before", &golden.before), {"after", &golden.after}}) {
    const Scratch written;
    save_adapter(*adapter, written.path());
    const char* config = "adapter_config.json";
    const char* tensors = "adapter_model.safetensors";
    for (const char* file : {config, tensors}) {
      same_bytes = same_bytes && read_file(written.path() / file) == read_file(golden.directory / name / file);
    }
    const auto settings = [&](const fs::path& at) { return nlohmann::json::parse(read_file(at / config)); };
    different += settings(written.path()) != settings(golden.directory / name);
    const SafetensorsFile theirs(golden.directory / name / tensors), ours(written.path() / tensors);
    for (const auto& [tensor, stored] : theirs.tensors()) different += !same(theirs, ours, tensor);
    for (const auto& [tensor, stored] : ours.tensors()) different += !theirs.tensors().contains(tensor);
  }
  return within("adapter files", different, 0,
                fmt::format("settings and tensors that differ when written again; {}",
                            same_bytes ? "all bytes are PEFT's" : "other bytes than PEFT's"));
}

// Each adapter merged into its weight, as PEFT does: embedding and head that are tied stay one weight.
Parameters merged(const Decoder& decoder, Parameters parameters) {
  for (const LinearIndex* at : decoder.adapted_layers()) {
    parameters[static_cast<size_t>(at->weight)] = merged_weight(parameters, *at);
  }
  return parameters;
}

Parameters joined(Parameters base, const Parameters& adapter) {
  for (const mx::array& tensor : adapter) base.push_back(mx::astype(tensor, mx::float32));
  return base;
}

}  // namespace

std::vector<PartResult> run_parts(const AdapterCase& golden) {
  const ModelShape& shape = golden.base.checkpoint.shape;
  const Decoder decoder(shape, golden.before.shape), plain(shape), decoder_after(shape, golden.after.shape);
  const Parameters base = cast(golden.base.checkpoint.tensors, mx::float32);
  const Parameters before = joined(base, golden.before.tensors), after = joined(base, golden.after.tensors);
  const Batch batch = to_batch(golden.base);
  std::vector<bool> mask(before.size());
  int64_t count = 0;
  for (size_t i = base.size(); i < mask.size(); ++i) {
    mask[i] = true;
    count += static_cast<int64_t>(before[i].size());
  }
  const Trained trained(std::move(mask));

  std::vector<PartResult> results;
  results.push_back(check_files(golden));
  results.push_back(within("trained parameters", std::abs(static_cast<double>(count - golden.trainable)), 0,
                           fmt::format("{}, there {}", count, golden.trainable)));
  results.push_back(check_logits("logits", golden.base, decoder.logits(before, batch.ids), golden.logits));
  const LossAndGradients mean = mean_loss_and_gradients(decoder, before, trained, batch);
  results.push_back(check_loss(decoder, before, batch, mx::array(mean.loss).item<float>(), golden.loss));
  results.push_back(check_gradients(decoder, trained, mean.gradients, golden.gradients));
  results.push_back(check_layerwise(decoder, before, trained, batch, golden.loss, golden.gradients));
  Parameters weights = before;
  results.push_back(check_run(golden.run, decoder, trained, batch, weights));
  std::vector<mx::array> stepped, expected;
  for (size_t i = base.size(); i < weights.size(); ++i) {
    stepped.push_back(weights[i]);
    expected.push_back(after[i]);
  }
  results.push_back(check_adamw_weights("adapter after adamw", stepped, expected));
  results.push_back(
      check_logits("logits after", golden.base, decoder_after.logits(after, batch.ids), golden.after_logits));
  results.push_back(check_logits("merged logits", golden.base, plain.logits(merged(decoder_after, after), batch.ids),
                                 golden.merged_logits));
  return results;
}

}  // namespace trunkline::conform

#include "train/layer_pass.h"

#include <optional>
#include <utility>
#include <vector>

#include "model/fused.h"

namespace trunkline {
namespace {

using Arrays = std::vector<mx::array>;

// Of the tokens.
int axis_of(const mx::array& array) { return array.ndim() == 4 ? 2 : 1; }

// Arrays [B, L, ...] (or [B, H, L, D]) that are made block by block of tokens.
class Assemblies {
 public:
  explicit Assemblies(int tokens) : tokens_(tokens) {}
  // A block's arrays, always as many.
  void put(int begin, int end, const Arrays& block) {
    for (size_t i = 0; i < block.size(); ++i) {
      const int axis = axis_of(block[i]);
      if (i == all_.size()) {
        mx::Shape shape = block[i].shape();
        shape[static_cast<size_t>(axis)] = tokens_;
        all_.emplace_back(shape, block[i].dtype(), axis);
      }
      all_[i].put(begin, end, block[i]);
    }
  }
  Arrays values() const {
    Arrays values;
    for (const Assembly& assembly : all_) values.push_back(assembly.value());
    return values;
  }
  Arrays take() {
    Arrays values;
    for (Assembly& assembly : all_) values.push_back(assembly.take());
    return values;
  }

 private:
  int tokens_;
  std::vector<Assembly> all_;
};

// An array [B, L, ...] to which blocks of tokens are added, in its own memory.
class Sum {
 public:
  explicit Sum(mx::array value) : value_(std::move(value)) {}
  void add(int begin, int end, const mx::array& x) {
    mx::Shape from(value_.ndim(), 0), to = value_.shape();
    from[1] = begin;
    to[1] = end;
    value_ = mx::slice_update_add(std::exchange(value_, mx::array(0.0f)), x, from, to);
  }
  const mx::array& value() const { return value_; }
  mx::array take() { return std::exchange(value_, mx::array(0.0f)); }

 private:
  mx::array value_;
};

Arrays parts(const Arrays& arrays, int begin, int end) {
  Arrays found;
  for (const mx::array& array : arrays) found.push_back(part(array, axis_of(array), begin, end));
  return found;
}

// Heads [B, H, L, D] as projected: [B, L, H * D].
Arrays unsplit(Arrays heads) {
  for (mx::array& x : heads) x = mx::reshape(mx::transpose(x, {0, 2, 1, 3}), {x.shape(0), x.shape(2), -1});
  return heads;
}

Arrays joined(Arrays a, const Arrays& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace

// The sums over blocks of the gradients of a layer's tensors.
class LayerPass::Gradients {
 public:
  void add(int tensor, const mx::array& gradient) {
    sums_.try_emplace(tensor, gradient.shape()).first->second.add(gradient);
  }
  Arrays values() const {
    Arrays values;
    for (const auto& [tensor, sum] : sums_) values.push_back(sum.value());
    return values;
  }
  std::map<int, mx::array> take() {
    std::map<int, mx::array> taken;
    for (auto& [tensor, sum] : sums_) taken.emplace(tensor, sum.take());
    return taken;
  }

 private:
  std::map<int, Accumulation> sums_;
};

// A stage for the tokens [begin, end) of each row.
Arrays LayerPass::run(const Parameters& parameters, int64_t layer, Stage stage, Part tokens,
                      const Arrays& inputs) const {
  const std::optional<Dropout> dropout = dropout_ ? std::optional(dropout_->part(tokens.begin, tokens.end)) : dropout_;
  const Dropout* const dropped = dropout ? &*dropout : nullptr;
  if (stage != Stage::rotation) {
    if (norms_.empty()) return decoder_.stage(parameters, layer, stage, inputs, nullptr, dropped);
    return decoder_.stage(joined(parameters, norms_), layer, stage, inputs, nullptr, dropped);
  }
  const RopeTable rope = rope_.part(tokens.begin, tokens.end);
  return decoder_.stage(parameters, layer, stage, inputs, &rope);
}

// The gradients of a stage's inputs; those of its trained tensors are added to `gradients`. MLX makes of the stage's
// forward pass only what these need: not its products.
Arrays LayerPass::vjp(int64_t layer, Stage stage, Part tokens, const Arrays& inputs, const Arrays& cotangents,
                      Gradients& gradients) const {
  std::vector<int> used = decoder_.stage_tensors(layer, stage);
  std::erase_if(used, [&](int tensor) { return !trained_[static_cast<size_t>(tensor)]; });
  Arrays primals;
  for (const int tensor : used) primals.push_back(parameters_[static_cast<size_t>(tensor)]);
  primals.insert(primals.end(), inputs.begin(), inputs.end());
  const auto forward = [&](const Arrays& in) {
    Parameters parameters = parameters_;
    for (size_t i = 0; i < used.size(); ++i) parameters[static_cast<size_t>(used[i])] = in[i];
    const Arrays given = {in.begin() + static_cast<ptrdiff_t>(used.size()), in.end()};
    // Not turned: the cotangents have been turned back.
    if (stage == Stage::rotation) return decoder_.stage(parameters, layer, stage, given);
    return run(parameters, layer, stage, tokens, given);
  };
  const Arrays found = mx::vjp(forward, primals, cotangents).second;
  for (size_t i = 0; i < used.size(); ++i) gradients.add(used[i], found[i]);
  return {found.begin() + static_cast<ptrdiff_t>(used.size()), found.end()};
}

Arrays LayerPass::project(int64_t layer, const mx::array& x) const {
  Assemblies heads(x.shape(1));
  for (const auto& [begin, end] : parts_of(x.shape(1), blocks_.tokens)) {
    heads.put(begin, end, run(parameters_, layer, Stage::heads, {begin, end}, {part(x, 1, begin, end)}));
    pacer_.queue(heads.values());
  }
  return heads.take();
}

Arrays LayerPass::rotate(int64_t layer, const Arrays& heads) const {
  const int tokens = heads.front().shape(1);
  Assemblies rotated(tokens);
  for (const auto& [begin, end] : parts_of(tokens, blocks_.tokens)) {
    rotated.put(begin, end, run(parameters_, layer, Stage::rotation, {begin, end}, parts(heads, begin, end)));
    pacer_.queue(rotated.values());
  }
  return rotated.take();
}

// Whether rotation does nothing to heads but turn them: no norm is in it.
bool LayerPass::only_turns(int64_t layer) const { return decoder_.stage_tensors(layer, Stage::rotation).empty(); }

LayerPass::Forward LayerPass::forward(int64_t layer, const mx::array& x, Keep keep) const {
  Forward result{x, KeptLayer(x)};
  KeptLayer& kept = result.kept;
  const bool keeps_products = keep == Keep::products || keep == Keep::all;
  Arrays projected = project(layer, x);
  Arrays rotated = rotate(layer, projected);
  if (keeps_products) kept.heads = only_turns(layer) ? rotated : projected;
  projected.clear();
  const mx::array mixed = attention_in_blocks(rotated[0], rotated[1], rotated[2], mask_, blocks_.queries, pacer_,
                                              keep == Keep::all ? &kept.weights : nullptr);
  rotated.clear();
  if (keep != Keep::input) kept.mixed = mixed;
  Assemblies output(x.shape(1)), mlp(x.shape(1));
  const auto to_output = [&](int begin, int end) {
    const Part at{begin, end};
    const Arrays middle = run(parameters_, layer, Stage::attention_output, at, parts({x, mixed}, begin, end));
    Arrays all = joined(middle, run(parameters_, layer, Stage::mlp_input, at, middle));
    const mx::array active = swiglu(all[1], all[2]);
    output.put(begin, end, run(parameters_, layer, Stage::mlp_output, at, {all[0], active}));
    if (keep == Keep::all) all.push_back(active);
    if (keeps_products) mlp.put(begin, end, all);
  };
  for (const auto& [begin, end] : parts_of(x.shape(1), blocks_.tokens)) {
    to_output(begin, end);
    pacer_.queue(joined(output.values(), mlp.values()));
  }
  result.output = output.take().front();
  kept.mlp = mlp.take();
  return result;
}

// Projected heads that were not kept are made each time they are needed: held in between, they would be what makes the
// step too large.
Arrays LayerPass::rotated_heads(int64_t layer, const KeptLayer& kept) const {
  if (kept.heads.empty()) return rotate(layer, project(layer, kept.input));
  return only_turns(layer) ? kept.heads : rotate(layer, kept.heads);
}

// In each half, nothing of a block is held when it is queued but what it is made for: its memory is used again.
LayerPass::Backward LayerPass::mlp_backward(int64_t layer, KeptLayer& kept, mx::array d) const {
  const int tokens = kept.input.shape(1);
  Gradients gradients;
  if (!kept.mixed) {
    const Arrays rotated = rotated_heads(layer, kept);
    kept.mixed = attention_in_blocks(rotated[0], rotated[1], rotated[2], mask_, blocks_.queries, pacer_);
  }
  Assemblies input(tokens);
  const auto back = [&](int begin, int end) {
    const Part at{begin, end};
    Arrays mlp = parts(kept.mlp, begin, end);
    if (mlp.empty()) {
      const Arrays middle =
          run(parameters_, layer, Stage::attention_output, at, parts({kept.input, *kept.mixed}, begin, end));
      mlp = joined(middle, run(parameters_, layer, Stage::mlp_input, at, middle));
    }
    if (mlp.size() == 3) mlp.push_back(swiglu(mlp[1], mlp[2]));
    const Arrays out = vjp(layer, Stage::mlp_output, at, {mlp[0], mlp[3]}, {part(d, 1, begin, end)}, gradients);
    mlp.pop_back();
    const Arrays products = swiglu_gradients(mlp[1], mlp[2], out[1]);
    const Arrays in = vjp(layer, Stage::mlp_input, at, {mlp[0]}, products, gradients);
    input.put(begin, end, {out[0] + in[0]});
  };
  for (const auto& [begin, end] : parts_of(tokens, blocks_.tokens)) {
    back(begin, end);
    if (end == tokens) {
      kept.mlp.clear();
      d = mx::array(0.0f);
    }
    pacer_.queue(joined(input.values(), gradients.values()));
  }
  return {input.take().front(), gradients.take()};
}

LayerPass::Backward LayerPass::attention_backward(int64_t layer, KeptLayer kept, mx::array d, bool to_input) const {
  const mx::array x = kept.input;
  const int tokens = x.shape(1);
  const std::vector<Part> blocks = parts_of(tokens, blocks_.tokens);
  Gradients gradients;
  // To attention's result: its gradient, and the dots of both.
  Assemblies owed(tokens);
  const auto back_to_mixed = [&](int begin, int end) {
    const Arrays in = parts({x, *kept.mixed}, begin, end);
    const Arrays made = vjp(layer, Stage::attention_output, {begin, end}, in, {part(d, 1, begin, end)}, gradients);
    owed.put(begin, end, {made[1], attention_dots(in[1], made[1])});
  };
  for (const auto& [begin, end] : blocks) {
    back_to_mixed(begin, end);
    if (end == tokens) kept.mixed.reset();
    pacer_.queue(joined(owed.values(), gradients.values()));
  }
  Arrays cotangents;
  {
    Arrays mixed = owed.take();
    const Arrays rotated = rotated_heads(layer, kept);
    AttentionGradients attention =
        attention_gradients_in_blocks(rotated[0], rotated[1], rotated[2], mixed[0], mixed[1], mask_, blocks_.queries,
                                      pacer_, std::move(kept.weights));
    cotangents = {std::move(attention.queries), std::move(attention.keys), std::move(attention.values)};
  }
  // To its input, which owes what the half's output does, too.
  std::optional<Sum> input;
  if (to_input) input.emplace(std::move(d));
  const auto back_to_input = [&](int begin, int end) {
    const Part at{begin, end};
    const RopeTable rope = rope_.part(begin, end);
    Arrays turned_back = parts(cotangents, begin, end);
    for (size_t i = 0; i < 2; ++i) turned_back[i] = rope.rotate_back(turned_back[i]);
    Arrays heads = parts(kept.heads, begin, end);
    if (heads.empty()) heads = run(parameters_, layer, Stage::heads, at, {part(x, 1, begin, end)});
    // Of the projected heads it is but the shape that counts here.
    if (heads.front().ndim() == 4) heads = unsplit(heads);
    heads = vjp(layer, Stage::rotation, at, heads, turned_back, gradients);
    const Arrays in = vjp(layer, Stage::heads, at, {part(x, 1, begin, end)}, heads, gradients);
    if (input) input->add(begin, end, in[0]);
  };
  for (const auto& [begin, end] : blocks) {
    back_to_input(begin, end);
    if (end == tokens) {
      kept.heads.clear();
      cotangents.clear();
    }
    pacer_.queue(joined(input ? Arrays{input->value()} : Arrays(), gradients.values()));
  }
  Backward result{std::nullopt, gradients.take()};
  if (input) result.input = input->take();
  return result;
}

}  // namespace trunkline

#include <fmt/format.h>

#include <numeric>
#include <thread>

#include "bridge/arrays.h"
#include "cli/bench_data.h"
#include "cli/step_work.h"

namespace trunkline {
namespace {

// A layer's gradients are seven tensors, in these shares: a Qwen3-8B layer's matrices (q, k, v, o; gate, up, down).
constexpr int kShares[] = {4, 1, 1, 4, 12, 12, 12};
constexpr size_t kOfAttention = 4;
constexpr int kAllShares = std::accumulate(std::begin(kShares), std::end(kShares), 0);

mx::array buffer_of(int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  return mx::array(mx::allocator::malloc(bytes), {static_cast<int>(count)}, mx::float32);
}

class Emulated final : public StepWork {
 public:
  Emulated(Group& group, const EmulatedWork& work, Dtype wire, bool check)
      : group_(group), work_(work), wire_(wire), checks_(check), ranks_(static_cast<size_t>(group.size())) {
    std::iota(ranks_.begin(), ranks_.end(), 0);
    const int64_t all = work.gradient_bytes / 4, head = work.head_bytes / 4, embedding = work.embedding_bytes / 4;
    if (head > 0) add("lm_head.weight", {head}, -1);
    const int64_t layers = all - head - embedding;
    for (int64_t layer = work.layers - 1; layer >= 0; --layer) {
      const int64_t mine = layers * (layer + 1) / work.layers - layers * layer / work.layers;
      std::vector<int64_t> counts;
      for (int share = 0, done = 0; const int part : kShares) {
        share = done + part;
        counts.push_back(mine * share / kAllShares - mine * done / kAllShares);
        done = share;
      }
      const auto mlp = counts.begin() + kOfAttention;
      add(fmt::format("layer {} mlp", layer), {mlp, counts.end()}, layer);
      add(fmt::format("layer {} attention", layer), {counts.begin(), mlp}, layer);
    }
    if (embedding > 0) add("model.embed_tokens.weight", {embedding}, -1);
    // The embedding's own backward pass is a look-up.
    const size_t computed = slots_.size() - (embedding > 0 ? 1 : 0);
    int64_t shared = 0;
    for (size_t i = 0; i < computed; ++i) shared += slots_[i].elements;
    for (size_t i = 0; i < slots_.size(); ++i) {
      const auto elements = static_cast<double>(slots_[i].elements);
      if (i < computed && shared > 0) slots_[i].backward_s = work.backward_s * elements / static_cast<double>(shared);
      if (all > 0) slots_[i].update_s = work.update_s * elements / static_cast<double>(all);
    }
  }

  std::string describe() const override {
    return fmt::format("emulated computation: a timer of {:g} ms forward, {:g} backward, {:g} update; {} layers",
                       work_.forward_s * 1e3, work_.backward_s * 1e3, work_.update_s * 1e3, work_.layers);
  }
  int64_t gradient_bytes() const override { return work_.gradient_bytes / 4 * 4; }

  void begin(int64_t number, bool at_once) override {
    seed_ = static_cast<uint64_t>(number);
    at_once_ = at_once;
    wrong_ = 0;
    late_ = 0.0;
    came_back_ = 0;
  }

  void forward() override { pass(Clock::now(), work_.forward_s); }

  void backward(const HandOver& hand_over) override {
    size_t first = 0;  // element of all
    for (Slot& slot : slots_) {
      const auto start = Clock::now();
      slot.first = first;
      std::vector<mx::array> gradients = std::move(slot.buffers);
      slot.buffers.clear();
      for (mx::array& gradient : gradients) {
        fill(gradient, first);
        first += gradient.size();
      }
      pass(start, slot.backward_s);
      hand_over(slot.piece, std::move(gradients));
    }
  }

  // Pieces come back in the order in which they were handed over.
  void update(const Piece&, std::vector<mx::array> gradients) override {
    Slot& slot = slots_.at(came_back_++);
    const auto start = Clock::now();
    if (checks_) {
      size_t first = slot.first;
      for (const mx::array& gradient : gradients) {
        check(gradient, first);
        first += gradient.size();
      }
    }
    slot.buffers = std::move(gradients);
    pass(start, slot.update_s);
  }

  void end() override {}

  uint64_t count_wrong() override {
    wrong_ += slots_.size() - came_back_;
    uint64_t all = 0;
    group_.all_sum(&wrong_, &all, 1, Dtype::u64);
    return all;
  }

 private:
  struct Slot {
    Piece piece;
    std::vector<mx::array> buffers;
    int64_t elements = 0;
    size_t first = 0;
    double backward_s = 0.0, update_s = 0.0;
  };

  void add(std::string name, const std::vector<int64_t>& counts, int64_t layer) {
    Slot& slot = slots_.emplace_back();
    slot.piece = {.name = std::move(name), .rows = {}, .layer = layer};
    for (const int64_t count : counts) {
      if (count == 0) continue;
      slot.piece.rows.push_back({tensors_++, 0, count});
      slot.buffers.push_back(buffer_of(count));
      slot.elements += count;
    }
  }

  // Computation that began at `start`. What one sleep takes too long, the next takes less.
  void pass(Clock::time_point start, double seconds) {
    if (at_once_) return;
    const auto target = start + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(std::max(0.0, seconds - late_)));
    const double before = late_;
    std::this_thread::sleep_until(target);
    late_ =
        std::max(0.0, std::chrono::duration<double>(Clock::now() - target).count() + std::max(0.0, before - seconds));
  }

  // Numbers that are what they are in the dtype of the wire too.
  void fill(mx::array& gradient, size_t first) {
    const BenchData data{wire_, seed_};
    if (wire_ == Dtype::f32) {
      data.fill(group_.rank(), first, gradient.size(), reinterpret_cast<std::byte*>(gradient.data<float>()));
      return;
    }
    mx::array narrow(mx::allocator::malloc(gradient.size() * 2), gradient.shape(), mx::bfloat16);
    data.fill(group_.rank(), first, gradient.size(), reinterpret_cast<std::byte*>(narrow.data<char>()));
    gradient = mx::astype(narrow, mx::float32);
    gradient.eval();
  }

  void check(const mx::array& gradient, size_t first) {
    const mx::array got = in_row_order(wire_ == Dtype::f32 ? gradient : mx::astype(gradient, mx::bfloat16));
    wrong_ += BenchData{wire_, seed_}.count_wrong(ranks_, first, got.size(),
                                                  reinterpret_cast<const std::byte*>(got.data<char>()));
  }

  Group& group_;
  const EmulatedWork work_;
  const Dtype wire_;
  const bool checks_;
  std::vector<int> ranks_;
  std::vector<Slot> slots_;
  size_t tensors_ = 0, came_back_ = 0;
  uint64_t seed_ = 0, wrong_ = 0;
  bool at_once_ = false;
  double late_ = 0.0;
};

}  // namespace

std::unique_ptr<StepWork> emulated_work(Group& group, const EmulatedWork& work, Dtype wire, bool check) {
  return std::make_unique<Emulated>(group, work, wire, check);
}

}  // namespace trunkline

#include "train/gradient_exchange.h"

#include <chrono>
#include <utility>

#include "bridge/arrays.h"
#include "model/parts.h"

namespace trunkline {
namespace {

// How long to look before sleeping: what a handover between two running threads takes.
constexpr std::chrono::microseconds kSpin{50};

}  // namespace

GradientExchange::GradientExchange(Group& group, Options options, Timeline& timeline, HandOver done)
    : group_(group), options_(options), timeline_(timeline), done_(std::move(done)) {
  if (timeline_.traces()) group_.lane_spans();  // from here on
  if (group_.size() > 1 && options_.sync == Sync::overlap) consumer_ = std::thread([this] { serve(); });
}

GradientExchange::~GradientExchange() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  if (consumer_.joinable()) consumer_.join();
}

// Looks for a while, then sleeps until told.
template <typename Ready>
void GradientExchange::wait(std::unique_lock<std::mutex>& lock, Ready ready) {
  const auto start = Clock::now();
  while (!ready() && (options_.busy_wait || Clock::now() - start < kSpin)) {
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  }
  changed_.wait(lock, ready);
}

void GradientExchange::sum(Job& job) {
  const std::string name = "sum of " + job.piece.name;
  {
    const Timeline::Span span(timeline_, Timeline::Track::communication, name);
    if (options_.shards != nullptr) {
      sum_parts(job);
    } else {
      all_sum(group_, job.memory, options_.wire);
    }
  }
  if (!timeline_.traces()) return;
  for (const LaneSpan& lane : group_.lane_spans()) timeline_.add_lane(lane.lane, name, lane.start, lane.end);
}

// Each rank's share of a gradient is summed into its place; what is everyone's goes together.
void GradientExchange::sum_parts(Job& job) {
  const auto ranks = static_cast<size_t>(group_.size()), rank = static_cast<size_t>(group_.rank());
  std::vector<std::span<char>> everyones;
  for (size_t i = 0; i < job.memory.size(); ++i) {
    const TensorRows& rows = job.piece.rows[i];
    const std::span<char> memory = job.memory[i];
    const size_t row = memory.size() / static_cast<size_t>(rows.rows);
    const size_t share = static_cast<size_t>(options_.shards->each(rows)) * row;
    if (share > 0) {
      group_.sum_scatter(memory.data(), memory.data() + rank * share, share / size_of(options_.wire), options_.wire);
    }
    if (share * ranks < memory.size()) everyones.push_back(memory.subspan(share * ranks));
  }
  all_sum(group_, everyones, options_.wire);
}

void GradientExchange::hand_back(Job job) {
  job.memory.clear();
  if (options_.shards != nullptr) {
    std::vector<mx::array> parts;
    for (size_t i = 0; i < job.gradients.size(); ++i) {
      const mx::array whole = std::exchange(job.gradients[i], mx::array(0.0f));
      for (const size_t at : options_.shards->parts_of(job.piece.rows[i])) {
        const TensorRows& rows = options_.shards->parts()[at].rows;
        const auto begin = static_cast<int>(rows.row - job.piece.rows[i].row);
        parts.push_back(own(part(whole, 0, begin, begin + static_cast<int>(rows.rows))));
      }
    }
    job.gradients = std::move(parts);
    job.piece = options_.shards->as_parts(job.piece);
  }
  if (options_.wire == Dtype::bf16) {
    for (mx::array& gradient : job.gradients) {
      gradient = mx::astype(std::exchange(gradient, mx::array(0.0f)), mx::float32);
    }
    mx::eval(job.gradients);
  }
  done_(job.piece, std::move(job.gradients));
}

void GradientExchange::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    wait(lock, [&] { return ended_ || !waiting_.empty(); });
    if (ended_ || failure_) return;
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      sum(job);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    summed_.push_back(std::move(job));  // arrays are let go by the other thread alone
    failure_ = failure;
    changed_.notify_all();
    if (failure_) return;
  }
}

void GradientExchange::submit(const Piece& piece, std::vector<mx::array> gradients) {
  if (group_.size() == 1) return done_(piece, std::move(gradients));
  Job job{piece, {}, {}};
  for (mx::array& gradient : gradients) {
    mx::array travelling =
        mx::astype(std::exchange(gradient, mx::array(0.0f)), options_.wire == Dtype::bf16 ? mx::bfloat16 : mx::float32);
    job.gradients.push_back(own(std::move(travelling)));
    job.memory.emplace_back(job.gradients.back().data<char>(), job.gradients.back().nbytes());
  }
  gradients.clear();
  if (options_.sync == Sync::after) {
    waiting_.push_back(std::move(job));
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(job));
    ++on_their_way_;
    changed_.notify_all();
  }
  take_back(kDepth);
}

// Hands over what has been summed, and waits for more while too much is on its way.
void GradientExchange::take_back(size_t most_on_their_way) {
  std::unique_lock lock(mutex_);
  while (true) {
    if (summed_.empty() && !failure_ && on_their_way_ > most_on_their_way) {
      const Timeline::Span span(timeline_, Timeline::Track::exposed, "waiting for sums");
      wait(lock, [&] { return failure_ || !summed_.empty(); });
    }
    if (failure_) std::rethrow_exception(failure_);
    if (summed_.empty()) return;
    Job job = std::move(summed_.front());
    summed_.pop_front();
    --on_their_way_;
    lock.unlock();
    hand_back(std::move(job));
    lock.lock();
  }
}

void GradientExchange::finish() {
  if (consumer_.joinable()) return take_back(0);
  while (!waiting_.empty()) {
    Job job = std::move(waiting_.front());
    waiting_.pop_front();
    {
      const Timeline::Span span(timeline_, Timeline::Track::exposed, "waiting for sums");
      sum(job);
    }
    hand_back(std::move(job));
  }
}

}  // namespace trunkline

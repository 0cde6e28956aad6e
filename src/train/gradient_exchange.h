// Gradients on their way between ranks: the thread that drives MLX submits pieces as they come to exist, another sums
// them over the ranks on raw memory, and the first takes them back.
#pragma once

#include <mlx/mlx.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "train/pieces.h"
#include "train/shards.h"
#include "train/timeline.h"
#include "trunkline/group.h"

namespace trunkline {

// When pieces are summed: while the backward pass goes on, or once it is done. Every piece is summed by the same calls
// in the same order in both, so the bits are the same.
enum class Sync { overlap, after };

class GradientExchange {
 public:
  // Pieces on their way at once, when overlapping: it bounds memory.
  static constexpr size_t kDepth = 2;

  struct Options {
    Sync sync = Sync::overlap;
    bool busy_wait = false;   // spin while waiting, rather than briefly
    Dtype wire = Dtype::f32;  // or bf16: gradients are rounded to it, their sums made in f32 and rounded once
    // If not null, each rank gets the sums of its parts alone: `done` takes the pieces as shards->as_parts has them.
    const Shards* shards = nullptr;
  };

  // `done` takes each piece, in order, with its gradients summed, on the submitting thread, inside submit or finish.
  // The group is the exchange's until finish has returned.
  GradientExchange(Group& group, Options options, Timeline& timeline, HandOver done);
  // Waits for the thread. If pieces are left, the group must have been aborted.
  ~GradientExchange();
  GradientExchange(const GradientExchange&) = delete;
  GradientExchange& operator=(const GradientExchange&) = delete;

  // Every rank submits the same pieces in the same order. Throws what has ended the sums.
  void submit(const Piece& piece, std::vector<mx::array> gradients);
  // Returns once all pieces are done.
  void finish();

 private:
  struct Job {
    Piece piece;
    std::vector<mx::array> gradients;     // as they travel
    std::vector<std::span<char>> memory;  // the gradients', for a thread that does not call MLX
  };
  void serve();
  void sum(Job& job);
  void sum_parts(Job& job);
  void hand_back(Job job);
  template <typename Ready>
  void wait(std::unique_lock<std::mutex>& lock, Ready ready);
  void take_back(size_t most_on_their_way);

  Group& group_;
  const Options options_;
  Timeline& timeline_;
  const HandOver done_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> waiting_, summed_;
  size_t on_their_way_ = 0;  // submitted, and not yet handed to done
  bool ended_ = false;
  std::exception_ptr failure_;
  std::thread consumer_;
};

}  // namespace trunkline

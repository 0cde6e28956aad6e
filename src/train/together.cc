#include "train/together.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>

#include "base/fail.h"

namespace trunkline {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstPause{2}, kLongestPause{500};

enum class State : int32_t { running = 0, done = 1, failed = 2 };

// What the two threads share.
struct Progress {
  std::mutex mutex;
  std::condition_variable changed;
  State state = State::running;
  std::string failure;

  void set(State to, std::string why = {}) {
    const std::lock_guard lock(mutex);
    state = to;
    failure = std::move(why);
    changed.notify_one();
  }
  State wait(milliseconds longest) {
    std::unique_lock lock(mutex);
    changed.wait_for(lock, longest, [&] { return state != State::running; });
    return state;
  }
};

// Exchanges states until no rank runs; returns each rank's reason for failing, empty where it did not.
std::vector<std::string> exchange(Group& group, Progress& progress) {
  const auto ranks = static_cast<size_t>(group.size());
  std::vector<int32_t> states(ranks);
  for (milliseconds pause = kFirstPause;; pause = std::min(2 * pause, kLongestPause)) {
    const auto mine = static_cast<int32_t>(progress.wait(pause));
    group.all_gather(&mine, states.data(), 1, Dtype::i32);
    if (std::ranges::count(states, static_cast<int32_t>(State::running)) == 0) break;
  }
  if (std::ranges::count(states, static_cast<int32_t>(State::failed)) == 0) return std::vector<std::string>(ranks);
  return gather_text(group, progress.failure);
}

}  // namespace

void together(Group& group, const std::function<void()>& work) {
  if (group.size() == 1) return work();
  Progress progress;
  std::vector<std::string> failures;
  std::exception_ptr lost;  // the group itself failed
  std::thread messenger([&] {
    try {
      failures = exchange(group, progress);
    } catch (const std::exception& error) {
      lost = std::current_exception();
      // The work under way cannot be broken off; whoever watches hears now what it will end with.
      if (progress.wait(milliseconds(0)) == State::running) {
        fmt::print(stderr, "trunkline: {}; stopping after the work under way\n", error.what());
      }
    }
  });
  std::exception_ptr own;
  try {
    work();
    progress.set(State::done);
  } catch (const std::exception& error) {
    own = std::current_exception();
    progress.set(State::failed, *error.what() != '\0' ? error.what() : "unknown failure");
  } catch (...) {
    own = std::current_exception();
    progress.set(State::failed, "unknown failure");
  }
  messenger.join();
  if (own) std::rethrow_exception(own);
  if (lost) std::rethrow_exception(lost);
  for (size_t rank = 0; rank < failures.size(); ++rank) {
    if (failures[rank].empty()) continue;
    fail(ErrorKind::peer, "rank {} ({}) failed: {}", rank, group.host_of(static_cast<int>(rank)), failures[rank]);
  }
}

std::vector<std::string> gather_text(Group& group, const std::string& mine) {
  auto longest = static_cast<int64_t>(mine.size());
  group.all_max(&longest, &longest, 1, Dtype::i64);
  // Padded with zero bytes, which no text here has.
  std::string padded = mine;
  padded.resize(static_cast<size_t>(longest));
  std::string all(padded.size() * static_cast<size_t>(group.size()), '\0');
  if (longest > 0) group.all_gather(padded.data(), all.data(), padded.size(), Dtype::u8);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < static_cast<size_t>(group.size()); ++rank) {
    const std::string text = all.substr(rank * padded.size(), padded.size());
    texts.push_back(text.substr(0, text.find('\0')));
  }
  return texts;
}

std::vector<std::vector<double>> gather_values(Group& group, const std::vector<double>& mine) {
  std::vector<double> all(mine.size() * static_cast<size_t>(group.size()));
  group.all_gather(mine.data(), all.data(), mine.size(), Dtype::u64);
  std::vector<std::vector<double>> values;
  for (size_t at = 0; at < all.size(); at += mine.size()) {
    values.emplace_back(all.begin() + static_cast<ptrdiff_t>(at),
                        all.begin() + static_cast<ptrdiff_t>(at + mine.size()));
  }
  return values;
}

}  // namespace trunkline

// Where the time of a step goes: spans on a few tracks, added up, and kept one by one if a trace is wanted.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace trunkline {

class Timeline {
 public:
  // Of the thread that computes: forward, backward, exposed (it waits for sums), update. Of whichever thread sums over
  // ranks: communication.
  enum class Track : uint8_t { forward, backward, exposed, update, communication };
  static constexpr size_t kTracks = 5;

  // `trace`: keep every span, for write().
  explicit Timeline(bool trace = false) : trace_(trace), start_(Clock::now()) {}

  // Any thread.
  void add(Track track, std::string name, Clock::time_point start, Clock::time_point end = Clock::now());

  // Whether spans are kept.
  bool traces() const { return trace_; }
  // When a lane worked on what is called `name`, for the trace alone.
  void add_lane(int lane, std::string name, Clock::time_point start, Clock::time_point end);

  // Adds what passes until it goes out of scope.
  class Span {
   public:
    Span(Timeline& timeline, Track track, std::string name)
        : timeline_(timeline), track_(track), name_(std::move(name)), start_(Clock::now()) {}
    ~Span() { timeline_.add(track_, std::move(name_), start_); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    Timeline& timeline_;
    Track track_;
    std::string name_;
    Clock::time_point start_;
  };

  // Seconds on a track since the last reset, and of the newest span there.
  double seconds(Track track) const;
  double newest(Track track) const;
  void reset();
  // The share of communication since then that lay behind computation, the newest span's left out: nothing was left to
  // hide it behind. NaN where there was nothing to hide.
  double hidden_share() const;

  // Throws Error(input), naming --trace, unless write() to `path` can be expected to work and would lose nothing but an
  // older trace.
  static void check_path(const std::filesystem::path& path);
  // The spans kept, as a Chrome trace (chrome://tracing, Perfetto) of process `rank`. Throws Error(system), and as
  // check_path does.
  void write(const std::filesystem::path& path, int rank) const;

 private:
  struct Event {
    std::string category;
    int row;
    std::string name;
    Clock::time_point start, end;
  };

  const bool trace_;
  const Clock::time_point start_;
  mutable std::mutex mutex_;
  std::array<double, kTracks> seconds_{}, newest_{};
  std::vector<Event> events_;
};

}  // namespace trunkline

#include "train/timeline.h"

#include <chrono>
#include <nlohmann/json.hpp>

#include "base/file.h"

namespace trunkline {
namespace {

constexpr const char* kNames[Timeline::kTracks] = {"forward", "backward", "waiting for sums", "update",
                                                   "communication"};
// Rows of the trace: what the computing thread does, and what the summing one does.
constexpr int kRows[Timeline::kTracks] = {0, 0, 0, 0, 1};
constexpr const char* kRowNames[] = {"computation", "communication"};

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

}  // namespace

void Timeline::add(Track track, std::string name, Clock::time_point start, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(track);
  newest_[at] = std::chrono::duration<double>(end - start).count();
  seconds_[at] += newest_[at];
  if (trace_) events_.push_back({track, std::move(name), start, end});
}

double Timeline::seconds(Track track) const {
  const std::lock_guard lock(mutex_);
  return seconds_[static_cast<size_t>(track)];
}

double Timeline::newest(Track track) const {
  const std::lock_guard lock(mutex_);
  return newest_[static_cast<size_t>(track)];
}

void Timeline::reset() {
  const std::lock_guard lock(mutex_);
  seconds_ = newest_ = {};
}

void Timeline::write(const std::filesystem::path& path, int rank) const {
  const std::lock_guard lock(mutex_);
  auto events = nlohmann::ordered_json::array();
  for (int row = 0; row < 2; ++row) {
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", kRowNames[row]}}}});
  }
  events.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", "rank " + std::to_string(rank)}}}});
  for (const Event& event : events_) {
    const auto at = static_cast<size_t>(event.track);
    events.push_back({{"name", event.name},
                      {"cat", kNames[at]},
                      {"ph", "X"},
                      {"ts", microseconds(event.start - start_)},
                      {"dur", microseconds(event.end - event.start)},
                      {"pid", rank},
                      {"tid", kRows[at]}});
  }
  write_file(path, nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump());
}

}  // namespace trunkline

#include "train/timeline.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/file.h"

namespace trunkline {
namespace {

constexpr const char* kNames[Timeline::kTracks] = {"forward", "backward", "waiting for sums", "update",
                                                   "communication"};
// Of a trace as write() makes it.
constexpr const char* kBeginning = R"({"traceEvents":[)";
// Rows of the trace: what the computing thread does, what the summing one does, and then each lane.
constexpr int kRows[Timeline::kTracks] = {0, 0, 0, 0, 1};
constexpr int kFirstLaneRow = 2;

std::string row_name(int row) {
  if (row < kFirstLaneRow) return row == 0 ? "computation" : "communication";
  return "lane " + std::to_string(row - kFirstLaneRow);
}

double microseconds(Clock::duration duration) { return std::chrono::duration<double, std::micro>(duration).count(); }

}  // namespace

void Timeline::add(Track track, std::string name, Clock::time_point start, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(track);
  newest_[at] = std::chrono::duration<double>(end - start).count();
  seconds_[at] += newest_[at];
  if (trace_) events_.push_back({kNames[at], kRows[at], std::move(name), start, end});
}

void Timeline::add_lane(int lane, std::string name, Clock::time_point start, Clock::time_point end) {
  const std::lock_guard lock(mutex_);
  if (trace_) events_.push_back({"lane", kFirstLaneRow + lane, std::move(name), start, end});
}

double Timeline::seconds(Track track) const {
  const std::lock_guard lock(mutex_);
  return seconds_[static_cast<size_t>(track)];
}

double Timeline::newest(Track track) const {
  const std::lock_guard lock(mutex_);
  return newest_[static_cast<size_t>(track)];
}

double Timeline::hidden_share() const {
  const double last = newest(Track::communication), to_hide = seconds(Track::communication) - last;
  const double seen = std::max(0.0, seconds(Track::exposed) - last);
  return to_hide > 0.0 ? std::max(0.0, 1.0 - seen / to_hide) : std::numeric_limits<double>::quiet_NaN();
}

void Timeline::reset() {
  const std::lock_guard lock(mutex_);
  seconds_ = newest_ = {};
}

void Timeline::check_path(const std::filesystem::path& path) {
  try {
    require_output_path(path, {kBeginning}, "a trace");
  } catch (const Error& error) {
    fail(ErrorKind::input, "--trace: {}", error.what());
  }
}

void Timeline::write(const std::filesystem::path& path, int rank) const {
  check_path(path);
  const std::lock_guard lock(mutex_);
  auto events = nlohmann::ordered_json::array();
  std::set<int> rows;
  for (const Event& event : events_) rows.insert(event.row);
  for (const int row : rows) {
    events.push_back(
        {{"name", "thread_name"}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", row_name(row)}}}});
  }
  events.push_back(
      {{"name", "process_name"}, {"ph", "M"}, {"pid", rank}, {"args", {{"name", "rank " + std::to_string(rank)}}}});
  for (const Event& event : events_) {
    events.push_back({{"name", event.name},
                      {"cat", event.category},
                      {"ph", "X"},
                      {"ts", microseconds(event.start - start_)},
                      {"dur", microseconds(event.end - event.start)},
                      {"pid", rank},
                      {"tid", event.row}});
  }
  write_file(path, nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump());
}

}  // namespace trunkline

#include "train/schedule.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/fail.h"

namespace trunkline {

Schedule::Schedule(const ScheduleOptions& options) : options_(options) {
  struct Form {
    Kind kind;
    size_t fewest, most;  // arguments
    int steps;            // which argument is a number of steps, at least 1; -1: none
  };
  static const std::map<std::string, Form> forms = {
      {"constant", {Kind::constant, 1, 1, -1}},  {"linear_schedule", {Kind::linear, 3, 3, 2}},
      {"linear", {Kind::linear, 3, 3, 2}},       {"cosine_decay", {Kind::cosine, 2, 3, 1}},
      {"cosine", {Kind::cosine, 2, 3, 1}},       {"exponential_decay", {Kind::exponential, 2, 2, -1}},
      {"step_decay", {Kind::stepwise, 3, 3, 2}},
  };
  const auto form = forms.find(options.name);
  if (form == forms.end()) {
    fail(ErrorKind::input,
         "lr_schedule: name: \"{}\" is not one of constant, linear_schedule, cosine_decay, exponential_decay, "
         "step_decay",
         options.name);
  }
  kind_ = form->second.kind;
  const size_t count = options.arguments.size();
  if (count < form->second.fewest || count > form->second.most) {
    fail(ErrorKind::input, "lr_schedule: arguments: {} takes {} to {} numbers, not {}", options.name,
         form->second.fewest, form->second.most, count);
  }
  for (const double argument : options.arguments) {
    if (!std::isfinite(argument) || argument < 0.0) {
      fail(ErrorKind::input, "lr_schedule: arguments: {} is not a finite number of at least 0", argument);
    }
  }
  if (const int steps = form->second.steps; steps >= 0 && options.arguments[static_cast<size_t>(steps)] < 1.0) {
    fail(ErrorKind::input, "lr_schedule: arguments: {} steps; at least 1 is needed",
         options.arguments[static_cast<size_t>(steps)]);
  }
  if (options.warmup < 0) fail(ErrorKind::input, "lr_schedule: warmup: {} is less than 0", options.warmup);
  if (!std::isfinite(options.warmup_init) || options.warmup_init < 0.0) {
    fail(ErrorKind::input, "lr_schedule: warmup_init: {} is not a finite number of at least 0", options.warmup_init);
  }
}

double Schedule::rate(int64_t step) const {
  if (options_.warmup == 0) return decayed(step);
  if (step > options_.warmup) return decayed(step - options_.warmup - 1);
  const double done = static_cast<double>(step) / static_cast<double>(options_.warmup);
  return options_.warmup_init + done * (options_.arguments[0] - options_.warmup_init);
}

double Schedule::decayed(int64_t step) const {
  const std::vector<double>& a = options_.arguments;
  const double s = static_cast<double>(step);
  switch (kind_) {
    case Kind::constant: return a[0];
    case Kind::linear: return a[0] + std::min(s, a[2]) * ((a[1] - a[0]) / a[2]);
    case Kind::cosine: {
      const double end = a.size() > 2 ? a[2] : 0.0;
      const double decay = 0.5 * (1.0 + std::cos(std::numbers::pi / a[1] * std::min(s, a[1])));
      return end + decay * (a[0] - end);
    }
    case Kind::exponential: return a[0] * std::pow(a[1], s);
    case Kind::stepwise: return a[0] * std::pow(a[1], std::floor(s / a[2]));
  }
  return a[0];
}

}  // namespace trunkline

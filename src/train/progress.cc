#include "train/progress.h"

#include <mlx/mlx.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "base/fail.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "model/backend.h"

namespace trunkline {
namespace {

namespace fs = std::filesystem;

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  if (whole >= 3600) return fmt::format("{}h {:02}m", whole / 3600, whole / 60 % 60);
  if (whole >= 60) return fmt::format("{}m {:02}s", whole / 60, whole % 60);
  return fmt::format("{}s", whole);
}

// The whole lines up to step `done`. A last line that a crash cut short is no damage.
std::string lines_until(const fs::path& path, int64_t done, std::vector<std::string>& warnings) {
  std::istringstream lines(fs::exists(path) ? read_file(path) : "");
  std::string kept;
  int64_t number = 0, damaged = 0, first_damaged = 0, last_step = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const auto value = nlohmann::json::parse(line, nullptr, false);
    const auto step = value.is_object() ? value.find("step") : value.end();
    if (step == value.end() || !step->is_number_integer()) {
      if (!lines.eof() && ++damaged == 1) first_damaged = number;
      continue;
    }
    if (step->get<int64_t>() > done) continue;
    last_step = step->get<int64_t>();
    kept += line + "\n";
  }
  if (damaged > 0) {
    warnings.push_back(fmt::format("{}: {} damaged line{} dropped, the first of them line {}", path.string(), damaged,
                                   damaged == 1 ? " was" : "s were", first_damaged));
  }
  if (last_step < done) {
    const std::string steps =
        last_step + 1 == done ? fmt::format("step {}", done) : fmt::format("steps {} to {}", last_step + 1, done);
    warnings.push_back(fmt::format("{}: no lines of {} are there", path.string(), steps));
  }
  return kept;
}

}  // namespace

Progress::Progress(const fs::path& output, int64_t total, int64_t steps_per_report, bool quiet)
    : quiet_(quiet),
      terminal_(is_terminal(stdout)),
      metrics_path_(output / "metrics.jsonl"),
      total_(total),
      steps_per_report_(steps_per_report) {}

void Progress::open(int64_t done, std::vector<std::string>& warnings) {
  if (quiet_) return;
  if (fs::exists(metrics_path_) && !fs::is_regular_file(metrics_path_)) {
    fail(ErrorKind::input, "{} is not a regular file: move it away", metrics_path_.string());
  }
  write_file(metrics_path_, done == 0 ? "" : lines_until(metrics_path_, done, warnings));
  metrics_.open(metrics_path_, std::ios::app);
  if (!metrics_) fail(ErrorKind::system, "cannot write {}", metrics_path_.string());
}

std::string Progress::describe(int64_t number, const Window& window, double learning_rate) const {
  const double left = seconds_ / static_cast<double>(steps_) * static_cast<double>(total_ - number);
  const std::string hidden =
      window.hidden_steps > 0
          ? fmt::format("comm hidden {:.0f} %  ", 100 * window.hidden / static_cast<double>(window.hidden_steps))
          : "";
  return fmt::format("step {}/{}  loss {:.4f}  lr {:.3g}  {:.1f} tokens/s  {}{} left", number, total_,
                     window.loss / static_cast<double>(window.targets), learning_rate,
                     static_cast<double>(window.targets) / window.seconds, hidden, duration(left));
}

void Progress::write(const std::string& line) {
  metrics_ << line << '\n' << std::flush;
  if (!metrics_) fail(ErrorKind::system, "cannot write {} (is the disk full?)", metrics_path_.string());
}

void Progress::step(const RunState& state, const StepResult& result, double learning_rate, double seconds) {
  if (quiet_) return;
  const int64_t number = state.step;
  const auto targets = static_cast<double>(result.targets);
  const ProcessMemory memory = process_memory();
  nlohmann::ordered_json line{{"step", number},
                              {"loss", result.loss},
                              {"learning_rate", learning_rate},
                              {"grad_norm", result.grad_norm},
                              {"seconds", seconds},
                              {"forward_s", result.forward_s},
                              {"backward_s", result.backward_s},
                              {"exposed_comm_s", result.exposed_s},
                              {"update_s", result.update_s},
                              {"comm_s", result.communication_s},
                              {"tokens_per_s", targets / seconds},
                              {"target_tokens", result.targets},
                              {"tokens", result.tokens},
                              {"trained_tokens", state.trained_tokens},
                              {"skipped_steps", state.skipped_steps},
                              {"process_bytes", memory.now},
                              {"process_peak_bytes", memory.peak},
                              {"mlx_peak_bytes", mlx::core::get_peak_memory()}};
  if (const std::optional<int64_t> taken = device_memory_taken()) {
    line["device_bytes"] = *taken;
    device_peak_ = std::max(device_peak_, *taken);
  }
  write(line.dump());
  seconds_ += seconds;
  ++steps_;
  forward_ += result.forward_s;
  backward_ += result.backward_s;
  exposed_ += result.exposed_s;
  update_ += result.update_s;
  if (std::isfinite(result.hidden)) {
    window_.hidden += result.hidden;
    ++window_.hidden_steps;
  }
  window_.loss += result.loss * targets;
  window_.targets += result.targets;
  window_.seconds += seconds;
  const bool report = number % steps_per_report_ == 0 || number == total_ || steps_ == 1;
  if (report) {
    say(describe(number, window_, learning_rate));
    window_ = {};
  } else if (terminal_) {
    fmt::print("\r\x1b[K{}", describe(number, window_, learning_rate));
    std::fflush(stdout);
    line_open_ = true;
  }
}

void Progress::spike(int64_t number, const char* what, double value, const SpikeWatch& watch) {
  say(fmt::format("step {}/{}  no update: its {}, {:.4g}, is {:.1f} standard deviations above that of the steps before",
                  number, total_, what, value, watch.score()));
}

void Progress::loss(int64_t number, const char* name, double loss, double seconds, const BestLoss& best) {
  if (quiet_) return;
  nlohmann::ordered_json line{{"step", number},
                              {fmt::format("{}_loss", name), loss},
                              {fmt::format("{}_perplexity", name), std::exp(loss)},
                              {fmt::format("{}_seconds", name), seconds}};
  std::string beside;
  if (best.loss) {
    line.update({{fmt::format("best_{}_loss", name), *best.loss}, {"best_step", best.step}});
    if (best.worse_since > 0) beside = fmt::format("  best {:.4f} at step {}", *best.loss, best.step);
  }
  write(line.dump());
  say(fmt::format("step {}/{}  {} loss {:.4f}{}  ({})", number, total_, name, loss, beside, duration(seconds)));
}

void Progress::breakdown() {
  if (steps_ == 0) return;
  const auto n = static_cast<double>(steps_);
  const double other = seconds_ - forward_ - backward_ - exposed_ - update_;
  say(
      fmt::format("a step took {:.3f} s: forward {:.3f}, backward {:.3f}, exposed communication {:.3f}, update {:.3f}, "
                  "other {:.3f}",
                  seconds_ / n, forward_ / n, backward_ / n, exposed_ / n, update_ / n, other / n));
  const auto gib = [](auto bytes) { return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30); };
  say(fmt::format("memory at most: MLX's allocator {:.2f} GiB, this process {:.2f} GiB{}",
                  gib(mlx::core::get_peak_memory()), gib(process_memory().peak),
                  device_peak_ > 0 ? fmt::format(", the device {:.2f} GiB (all that is on it, at the end of a step)",
                                                 gib(device_peak_))
                                   : ""));
}

void Progress::say(const std::string& line) {
  if (quiet_) return;
  fmt::print("{}{}\n", line_open_ ? "\r\x1b[K" : "", line);
  std::fflush(stdout);
  line_open_ = false;
}

}  // namespace trunkline

#include <fmt/ranges.h>

#include <vector>

#include "base/fail.h"
#include "base/settings.h"
#include "trunkline/group.h"

namespace trunkline {
namespace {

constexpr long kMaxRanks = 1024;
constexpr long kMaxLanes = 10;
constexpr long kMaxTimeoutSeconds = 7 * 24 * 3600;
constexpr long kMaxTrunks = 64;
constexpr long kMaxTrunkingFrom = 1 << 30;
constexpr long kMinFrameBytes = 512, kMaxFrameBytes = 4 << 20;

template <typename T>
struct Choice {
  const char* name;
  T value;
};

// The value that a variable's text names.
template <typename T, size_t N>
T choose(const char* variable, const std::string& text, const Choice<T> (&choices)[N]) {
  std::vector<std::string> names;
  for (const Choice<T>& each : choices) {
    if (text == each.name) return each.value;
    names.emplace_back(each.name);
  }
  fail(ErrorKind::input, "{}: \"{}\" is not one of {}", variable, text, fmt::join(names, ", "));
}

constexpr Choice<Algorithm> kAlgorithms[] = {{"auto", Algorithm::automatic},
                                             {"mesh", Algorithm::mesh},
                                             {"broadcast", Algorithm::broadcast},
                                             {"ring", Algorithm::ring}};
constexpr Choice<Workers> kWorkers[] = {
    {"pool", Workers::pool}, {"per-call", Workers::per_call}, {"single", Workers::single}};
constexpr Choice<bool> kOnOff[] = {{"on", true}, {"off", false}};

}  // namespace

Config Config::from_env() {
  const Settings& settings = Settings::get();
  Config config;
  if (settings.timeout) {
    config.timeout = std::chrono::seconds(to_integer("TRUNKLINE_TIMEOUT", *settings.timeout, 1, kMaxTimeoutSeconds));
  }
  if (settings.lanes) config.lanes = static_cast<int>(to_integer("TRUNKLINE_LANES", *settings.lanes, 1, kMaxLanes));
  if (settings.algorithm) config.algorithm = choose("TRUNKLINE_ALGORITHM", *settings.algorithm, kAlgorithms);
  if (settings.workers) config.workers = choose("TRUNKLINE_WORKERS", *settings.workers, kWorkers);
  if (settings.trunks)
    config.trunks = static_cast<int>(to_integer("TRUNKLINE_TRUNKS", *settings.trunks, 1, kMaxTrunks));
  if (settings.trunking_from) {
    config.trunking_from =
        static_cast<size_t>(to_integer("TRUNKLINE_TRUNKING_FROM", *settings.trunking_from, 1, kMaxTrunkingFrom));
  }
  if (settings.frame_bytes) {
    config.frame_bytes =
        static_cast<size_t>(to_integer("TRUNKLINE_FRAME_BYTES", *settings.frame_bytes, kMinFrameBytes, kMaxFrameBytes));
  }
  if (settings.checksum) config.checksum = choose("TRUNKLINE_CRC", *settings.checksum, kOnOff);
  if (settings.tcp_fallback) {
    config.tcp_fallback = choose("TRUNKLINE_TCP_FALLBACK", *settings.tcp_fallback, kOnOff);
  }
  config.job_key = settings.job_key.value_or("");
  if (!settings.rank && !settings.size && !settings.coordinator) return config;

  std::vector<const char*> missing;
  if (!settings.rank) missing.push_back("MLX_RANK");
  if (!settings.size) missing.push_back("MLX_WORLD_SIZE");
  if (settings.size) config.size = static_cast<int>(to_integer("MLX_WORLD_SIZE", *settings.size, 1, kMaxRanks));
  if (!settings.coordinator && config.size > 1) missing.push_back("MLX_JACCL_COORDINATOR");
  if (!missing.empty()) {
    fail(ErrorKind::input,
         "the environment gives this process a place in a job only in part: {} not set. Set MLX_RANK, MLX_WORLD_SIZE "
         "and "
         "MLX_JACCL_COORDINATOR together, or start the ranks with `trunkline launch`",
         fmt::join(missing, " and "));
  }
  config.rank = static_cast<int>(to_integer("MLX_RANK", *settings.rank, 0, config.size - 1));
  config.coordinator = settings.coordinator.value_or("");
  config.devices = settings.devices.value_or("");
  if (settings.listen_fd && config.rank == 0) {
    config.listen_fd = static_cast<int>(to_integer("TRUNKLINE_LISTEN_FD", *settings.listen_fd, 3, 1 << 20));
  }
  return config;
}

}  // namespace trunkline

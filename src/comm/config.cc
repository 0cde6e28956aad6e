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

Algorithm algorithm_from(const std::string& name) {
  if (name == "auto") return Algorithm::automatic;
  if (name == "mesh") return Algorithm::mesh;
  if (name == "broadcast") return Algorithm::broadcast;
  fail(ErrorKind::input, "TRUNKLINE_ALGORITHM: \"{}\" is not one of auto, mesh, broadcast", name);
}

}  // namespace

Config Config::from_env() {
  const Settings& settings = Settings::get();
  Config config;
  if (settings.timeout) {
    config.timeout = std::chrono::seconds(to_integer("TRUNKLINE_TIMEOUT", *settings.timeout, 1, kMaxTimeoutSeconds));
  }
  if (settings.lanes) config.lanes = static_cast<int>(to_integer("TRUNKLINE_LANES", *settings.lanes, 1, kMaxLanes));
  if (settings.algorithm) config.algorithm = algorithm_from(*settings.algorithm);
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
  if (settings.listen_fd && config.rank == 0) {
    config.listen_fd = static_cast<int>(to_integer("TRUNKLINE_LISTEN_FD", *settings.listen_fd, 3, 1 << 20));
  }
  return config;
}

}  // namespace trunkline

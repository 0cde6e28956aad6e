#include "base/settings.h"

#include <charconv>
#include <cstdlib>
#include <initializer_list>

#include "base/fail.h"

namespace trunkline {
namespace {

// The first of the names that is set and not empty.
std::optional<std::string> read(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value != nullptr && *value != '\0') return value;
  }
  return std::nullopt;
}

}  // namespace

const Settings& Settings::get() {
  static const Settings settings{
      .rank = read({"JACCL_RANK", "MLX_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}),
      .size = read({"MLX_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}),
      .coordinator = read({"JACCL_COORDINATOR", "MLX_JACCL_COORDINATOR"}),
      .job_key = read({"TRUNKLINE_JOB_KEY"}),
      .listen_fd = read({"TRUNKLINE_LISTEN_FD"}),
      .fabric_fd = read({"TRUNKLINE_FABRIC_FD"}),
      .devices = read({"JACCL_IBV_DEVICES", "MLX_IBV_DEVICES"}),
      .lanes = read({"TRUNKLINE_LANES"}),
      .workers = read({"TRUNKLINE_WORKERS"}),
      .trunks = read({"TRUNKLINE_TRUNKS"}),
      .trunking_from = read({"TRUNKLINE_TRUNKING_FROM"}),
      .frame_bytes = read({"TRUNKLINE_FRAME_BYTES"}),
      .checksum = read({"TRUNKLINE_CRC"}),
      .tcp_fallback = read({"TRUNKLINE_TCP_FALLBACK"}),
      .timeout = read({"TRUNKLINE_TIMEOUT"}),
      .algorithm = read({"TRUNKLINE_ALGORITHM"}),
      .openblas_threads = read({"OPENBLAS_NUM_THREADS"}),
      .omp_threads = read({"OMP_NUM_THREADS"}),
      .veclib_threads = read({"VECLIB_MAXIMUM_THREADS"}),
      .columns = read({"COLUMNS"}),
      .lines = read({"LINES"}),
      .log_level = read({"TRUNKLINE_LOG"}),
      .python = read({"TRUNKLINE_PYTHON"}),
      .cache_home = read({"XDG_CACHE_HOME"}),
      .home = read({"HOME"}),
      .path = read({"PATH"}),
      .library_path = read({"LD_LIBRARY_PATH"}),
  };
  return settings;
}

long to_integer(const char* variable, const std::string& text, long low, long high) {
  long value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    fail(ErrorKind::input, "{}: \"{}\" is not a whole number from {} to {}", variable, text, low, high);
  }
  return value;
}

}  // namespace trunkline

// Every environment variable that Trunkline reads, read once, here. docs/environment.md has the table.
#pragma once

#include <optional>
#include <string>

namespace trunkline {

struct Settings {
  // Place in a job; set by `trunkline launch`, or by mpirun and srun.
  // JACCL_RANK, else MLX_RANK, OMPI_COMM_WORLD_RANK, PMI_RANK or SLURM_PROCID.
  std::optional<std::string> rank;
  std::optional<std::string> size;         // MLX_WORLD_SIZE, OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS
  std::optional<std::string> coordinator;  // MLX_JACCL_COORDINATOR (JACCL_COORDINATOR wins): IP:PORT of rank 0
  std::optional<std::string> job_key;      // TRUNKLINE_JOB_KEY: hex
  std::optional<std::string> listen_fd;  // TRUNKLINE_LISTEN_FD: rank 0's listening socket, inherited from the launcher
  std::optional<std::string> fabric_fd;  // TRUNKLINE_FABRIC_FD: the file that emulated cables lie in
  std::optional<std::string> devices;    // MLX_IBV_DEVICES (JACCL_IBV_DEVICES wins): the file with the device matrix
  // Tuning.
  std::optional<std::string> lanes;          // TRUNKLINE_LANES: stripes of a message
  std::optional<std::string> workers;        // TRUNKLINE_WORKERS: pool, per-call, single
  std::optional<std::string> trunks;         // TRUNKLINE_TRUNKS: cables used to each peer
  std::optional<std::string> trunking_from;  // TRUNKLINE_TRUNKING_FROM: bytes of a message that lanes share
  std::optional<std::string> frame_bytes;    // TRUNKLINE_FRAME_BYTES: payload of one message over a cable
  std::optional<std::string> checksum;       // TRUNKLINE_CRC: on, off
  std::optional<std::string> tcp_fallback;   // TRUNKLINE_TCP_FALLBACK: on, off
  std::optional<std::string> timeout;        // TRUNKLINE_TIMEOUT: seconds from the last progress
  std::optional<std::string> algorithm;      // TRUNKLINE_ALGORITHM: auto, mesh, broadcast, ring
  // Left as the user set them; `trunkline launch` gives ranks the rest.
  std::optional<std::string> openblas_threads;  // OPENBLAS_NUM_THREADS
  std::optional<std::string> omp_threads;       // OMP_NUM_THREADS
  std::optional<std::string> veclib_threads;    // VECLIB_MAXIMUM_THREADS
  std::optional<std::string> columns;           // COLUMNS
  std::optional<std::string> lines;             // LINES
  // Elsewhere.
  std::optional<std::string> log_level;     // TRUNKLINE_LOG
  std::optional<std::string> python;        // TRUNKLINE_PYTHON: the interpreter that has tokenizers and jinja2
  std::optional<std::string> cache_home;    // XDG_CACHE_HOME
  std::optional<std::string> home;          // HOME
  std::optional<std::string> path;          // PATH
  std::optional<std::string> library_path;  // LD_LIBRARY_PATH

  // The process's environment, as it was at the first call.
  static const Settings& get();
};

// A setting's text as a whole number from `low` to `high`; throws Error(input) naming the variable otherwise.
long to_integer(const char* variable, const std::string& text, long low, long high);

}  // namespace trunkline

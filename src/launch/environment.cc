#include "launch/environment.h"

#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#ifdef __APPLE__
#include <sys/random.h>
#endif

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/fail.h"

namespace trunkline {
namespace {

std::string random_hex() {
  std::array<uint8_t, 32> bytes;
  if (::getentropy(bytes.data(), bytes.size()) != 0) fail_errno("getentropy");
  std::string text;
  for (const uint8_t byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace

Rendezvous open_rendezvous(int ranks) {
  constexpr int kConnectionsPerRank = 16;  // waiting to be accepted: several lanes and a control connection
  Rendezvous result;
  result.socket = Fd(::socket(AF_INET, SOCK_STREAM, 0));
  if (!result.socket) fail_errno("socket");
  const int fd = result.socket.get();
  set_close_on_exec(fd);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0) fail_errno("bind to 127.0.0.1");
  if (::listen(fd, std::clamp(ranks * kConnectionsPerRank, 128, 4096)) != 0) fail_errno("listen on 127.0.0.1");
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) fail_errno("getsockname");
  result.port = ntohs(address.sin_port);
  result.key = random_hex();
  return result;
}

std::optional<Terminal> terminal_size(int output, int error) {
  for (const int fd : {output, error}) {
    winsize size{};
    if (::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
      return Terminal{size.ws_col, size.ws_row};
    }
  }
  return std::nullopt;
}

decltype(ProcessOptions::environment) rank_environment(int rank, int size, const Rendezvous& rendezvous, int threads,
                                                       std::optional<Terminal> terminal, const Settings& settings) {
  decltype(ProcessOptions::environment) result = {
      {"MLX_RANK", std::to_string(rank)},
      {"MLX_WORLD_SIZE", std::to_string(size)},
      {"MLX_JACCL_COORDINATOR", fmt::format("127.0.0.1:{}", rendezvous.port)},
      // These win over the three above; a launcher that is itself a rank may have them.
      {"JACCL_RANK", std::nullopt},
      {"JACCL_COORDINATOR", std::nullopt},
      {"TRUNKLINE_JOB_KEY", rendezvous.key},
      {"TRUNKLINE_LISTEN_FD", std::nullopt},
  };
  if (rank == 0) result.back().second = std::to_string(rendezvous.socket.get());

  const std::string share = std::to_string(threads);
#ifdef __APPLE__
  if (!settings.veclib_threads) result.emplace_back("VECLIB_MAXIMUM_THREADS", share);
#endif
  // OpenBLAS prefers its own variable to OMP's: it must not hide one that the user has set.
  if (!settings.openblas_threads && !settings.omp_threads) result.emplace_back("OPENBLAS_NUM_THREADS", share);
  if (!settings.omp_threads) result.emplace_back("OMP_NUM_THREADS", share);
  if (terminal) {
    if (!settings.columns) result.emplace_back("COLUMNS", std::to_string(terminal->columns));
    if (!settings.lines) result.emplace_back("LINES", std::to_string(terminal->lines));
  }
  return result;
}

}  // namespace trunkline

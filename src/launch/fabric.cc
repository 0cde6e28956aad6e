#include "launch/fabric.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "base/fail.h"

namespace trunkline {

#ifdef __linux__

namespace {

Fd unnamed_file(const char* what, const std::string& text) {
  Fd file(::memfd_create(what, MFD_CLOEXEC));
  if (!file) fail_errno("memfd_create for {}", what);
  for (size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(file.get(), text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_errno("write {}", what);
    done += static_cast<size_t>(put);
  }
  return file;
}

// As a hostfile's "rdma" has it: no device is null, one a string, more a list.
std::string matrix_text(const Wiring& wiring) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& row : device_matrix(wiring)) {
    nlohmann::json cells = nlohmann::json::array();
    for (const auto& devices : row) {
      cells.push_back(devices.empty()       ? nlohmann::json()
                      : devices.size() == 1 ? nlohmann::json(devices[0])
                                            : nlohmann::json(devices));
    }
    rows.push_back(std::move(cells));
  }
  return rows.dump() + "\n";
}

}  // namespace

Fabric open_fabric(const Wiring& wiring) {
  Fabric fabric;
  fabric.library = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "fabric";
  if (const auto file = fabric.library / "libibverbs.so.1"; !std::filesystem::exists(file)) {
    fail(ErrorKind::system, "emulated cables: {} is not there; build all of Trunkline, or keep it beside the program",
         file.string());
  }
  fabric.state = unnamed_file("the fabric's state", to_json(wiring));
  fabric.matrix = unnamed_file("the device matrix", matrix_text(wiring));
  return fabric;
}

#else

Fabric open_fabric(const Wiring&) { fail(ErrorKind::unsupported, "emulated cables: only Linux has them"); }

#endif

decltype(ProcessOptions::environment) fabric_environment(const Fabric* fabric, const Settings& settings) {
  if (fabric == nullptr) return {{"TRUNKLINE_FABRIC_FD", std::nullopt}};
  std::string libraries = fabric->library.string();
  if (settings.library_path) libraries += ":" + *settings.library_path;
  return {{"TRUNKLINE_FABRIC_FD", std::to_string(fabric->state.get())},
          {"LD_LIBRARY_PATH", libraries},
          {"MLX_IBV_DEVICES", fmt::format("/proc/self/fd/{}", fabric->matrix.get())},
          {"JACCL_IBV_DEVICES", std::nullopt}};
}

}  // namespace trunkline

// The cables of an emulated job and the devices at their ends, as values: what `trunkline launch --cables SPEC` and
// `--fabric FILE` say. docs/fabric.md describes both formats; src/fabric makes RDMA devices of it.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace trunkline {

// A cable is out from `cut_ms` until `mend_ms`, counted from the moment when all ranks have connected.
struct Outage {
  double cut_ms = 0;
  double mend_ms = std::numeric_limits<double>::infinity();
  bool operator==(const Outage&) const = default;
};

struct CableEnd {
  int rank = 0;
  std::string device;
  bool operator==(const CableEnd&) const = default;
};

struct Cable {
  std::array<CableEnd, 2> ends;
  std::optional<double> gbps;  // 10^9 bits a second each way at once; none: no limit
  double delay_us = 0;
  double loss = 0;           // chances a message: it never arrives
  double damage = 0;         // it arrives with bytes changed
  double receive_error = 0;  // its receive completes with an error, the buffer untouched
  int link_gbps = 80;        // what the ports report: 80 (Thunderbolt 5) or 40
  std::vector<Outage> outages;
  bool operator==(const Cable&) const = default;
};

// From `at_ms` on, counted from the first rank's start, a device has these addresses; an empty one is an empty entry.
struct GidTable {
  double at_ms = 0;
  std::vector<std::string> gids;  // IPv6 texts
  bool operator==(const GidTable&) const = default;
};

// The calls that a device may be told to hang in or to refuse, as verbs names without "ibv_".
inline constexpr std::array<std::string_view, 15> kDeviceCalls = {
    "open_device", "query_device", "query_port", "query_gid",  "alloc_pd",  "reg_mr",    "create_cq", "create_qp",
    "modify_qp",   "destroy_qp",   "dereg_mr",   "destroy_cq", "post_send", "post_recv", "poll_cq"};

struct Device {
  int rank = 0;
  std::string name;
  bool port_down = false;             // it opens, but has no protection domain
  std::vector<GidTable> gids;         // none: a link-local address at index 0, an IPv4-mapped one at index 1
  std::vector<std::string> hangs;     // calls that never return ...
  double hangs_at_ms = 0;             // ... from then on, counted from the first rank's start
  std::map<std::string, int> errors;  // calls that fail with this errno
  bool operator==(const Device&) const = default;
};

// What each device can do; the defaults are those reported of Macs.
struct DeviceLimits {
  int queue_pairs = 10;
  bool keep_crashed_queue_pairs = false;  // those of a killed process stay taken, as until a reboot
  int work_requests = 63;                 // accepted each way of a queue pair
  int advertised_work_requests = 4095;
  int scatter_entries = 1;
  int inline_bytes = 0;
  int memory_regions = 100;
  int mtu = 4096;
  int64_t message_bytes = int64_t{16} << 20;
  bool resolve_gids = false;  // a queue pair whose peer's address is not at the cable's other end cannot be connected
  bool operator==(const DeviceLimits&) const = default;
};

struct Wiring {
  int ranks = 0;
  uint64_t seed = 0;
  DeviceLimits limits;
  std::vector<Cable> cables;
  std::vector<Device> devices;  // rank by rank, each in the order of its enumeration
  bool operator==(const Wiring&) const = default;
};

// K[:key=value,...]: K cables for every pair of ranks. Throws Error(input) naming the key.
Wiring wiring_from_spec(std::string_view spec, int ranks);

// FILE's text. `where` names it in errors; `ranks`: of the job, if known, to which the file's own number must be equal.
Wiring wiring_from_json(std::string_view text, const std::string& where, std::optional<int> ranks = std::nullopt);

// Adds the devices that only cables name; throws Error(input) where ranks, ends, names or cuts cannot be so.
void complete_wiring(Wiring& wiring, const std::string& where);

// The same wiring as a FILE.
std::string to_json(const Wiring& wiring);

// [a][b]: the names of rank a's devices that have a cable to rank b, in the order of the cables: the matrix of a
// hostfile.
using DeviceMatrix = std::vector<std::vector<std::vector<std::string>>>;
DeviceMatrix device_matrix(const Wiring& wiring);

// The text of a file with the matrix, as MLX_IBV_DEVICES names one: a list of rows of cells, each null, a name, or a
// list of names. Throws Error(input) with `where`, row and column for one that cannot be of a job with that many ranks.
DeviceMatrix device_matrix_from_json(std::string_view text, const std::string& where, int ranks);

// It is square, names a device once in a row, and as many devices for one direction of a pair as for the other.
void check_device_matrix(const DeviceMatrix& matrix, const std::string& where);

}  // namespace trunkline

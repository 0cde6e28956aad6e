#include "link/verbs_device.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fail.h"
#include "base/log.h"

namespace trunkline {
namespace {

constexpr uint8_t kPort = 1;  // the only one of a Thunderbolt device

// The devices of this machine; freed with the last user, even if that is a call that hangs.
struct DeviceList {
  std::shared_ptr<ibv_device*> devices;
  std::vector<std::string> names;
};

DeviceList list_devices(const VerbsLibrary& library) {
  int count = 0;
  ibv_device** const list = library.get_device_list(&count);
  if (list == nullptr) return {};
  DeviceList result{{list, library.free_device_list}, {}};
  for (int i = 0; i < count; ++i) {
    const char* name = library.get_device_name(list[i]);
    result.names.emplace_back(name == nullptr ? "" : name);
  }
  return result;
}

bool is_ipv4_mapped(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof kPrefix) == 0;
}

// What the port says of its link; 0: nothing that is known.
double gbps_of(const ibv_port_attr& port) {
  const int lanes = port.active_width == 1 ? 1 : port.active_width == 2 ? 4 : port.active_width == 4 ? 8 : 0;
  const double lane = port.active_speed == 1                             ? 2.5
                      : port.active_speed == 2                           ? 5
                      : port.active_speed == 4 || port.active_speed == 8 ? 10
                                                                         : 0;
  return lanes * lane;
}

// "fe80::1" needs no more than hexadecimal here.
std::string text_of(const ibv_gid& gid) {
  std::string text;
  for (int i = 0; i < 16; i += 2) text += fmt::format("{}{:02x}{:02x}", i == 0 ? "" : ":", gid.raw[i], gid.raw[i + 1]);
  return text;
}

}  // namespace

VerbsDevice::VerbsDevice(const VerbsLibrary& library, int rank, std::string name, std::chrono::milliseconds patience)
    : library_(library),
      name_(std::move(name)),
      subject_(fmt::format("rank {}: device {}", rank, name_)),
      calls_(subject_, patience) {
  open();
  try {
    check_port();
    find_gid(patience);
    const auto [pd, error] =
        calls_.run("alloc_pd", [call = library_.alloc_pd, context = context_] { return call(context); });
    pd_ = pd;
    if (pd_ == nullptr) {
      fail(
          ErrorKind::system,
          "{} gives no protection domain ({}): unplug and plug its cable; after many starts of programs that use RDMA, "
          "only a reboot helps",
          subject_, std::strerror(error));
    }
  } catch (...) {
    release(*this, "close_device", [call = library_.close_device, context = context_] { return call(context); });
    throw;
  }
}

VerbsDevice::~VerbsDevice() {
  release(*this, "dealloc_pd", [call = library_.dealloc_pd, pd = pd_] { return call(pd); });
  release(*this, "close_device", [call = library_.close_device, context = context_] { return call(context); });
}

void VerbsDevice::open() {
  const auto listed = calls_.run("get_device_list", [library = library_] { return list_devices(library); });
  const DeviceList& list = listed.value;
#ifdef __APPLE__
  constexpr const char* kEnable = "restart into Recovery and run `rdma_ctl enable` in its Terminal, once a machine";
#else
  constexpr const char* kEnable = "load the driver of an RDMA device, or use TCP";
#endif
  if (!list.devices) {
    fail(ErrorKind::system, "{}: the RDMA library lists no devices: {}; {}", subject_, std::strerror(listed.error),
         kEnable);
  }
  const auto found = std::find(list.names.begin(), list.names.end(), name_);
  if (found == list.names.end()) {
    if (list.names.empty()) {
      fail(ErrorKind::input, "{} is not there, nor is any other RDMA device: {}", subject_, kEnable);
    }
    fail(ErrorKind::input, "{} is not there; there are {}: correct the device matrix", subject_,
         fmt::join(list.names, ", "));
  }
  const size_t index = static_cast<size_t>(found - list.names.begin());
  const auto opened = calls_.run("open_device", [open = library_.open_device, devices = list.devices, index] {
    return open(devices.get()[index]);
  });
  context_ = opened.value;
  if (context_ == nullptr) {
    fail(ErrorKind::system, "{} cannot be opened: {}; unplug and plug its cable", subject_,
         std::strerror(opened.error));
  }
}

void VerbsDevice::check_port() {
  struct Port {
    int error = 0;
    ibv_port_attr attributes{};
  };
  const Port port = calls_
                        .run("query_port",
                             [call = library_.query_port, context = context_] {
                               Port result;
                               result.error = call(context, kPort, &result.attributes);
                               return result;
                             })
                        .value;
  if (port.error != 0) {
    fail(ErrorKind::system, "{}: query of its port: {}; unplug and plug its cable", subject_,
         std::strerror(port.error < 0 ? EIO : port.error));
  }
  if (port.attributes.state != IBV_PORT_ACTIVE) {
    fail(ErrorKind::system,
         "{}: its port is down (state {}): plug in its cable, see that the machine at the other end is on and has RDMA "
         "enabled, and that the interface is up and no member of a bridge",
         subject_, static_cast<int>(port.attributes.state));
  }
  if (const double gbps = gbps_of(port.attributes); gbps > 0 && gbps < 80) {
    spdlog::warn("{}: its link is of {} Gb/s; RDMA between Macs needs Thunderbolt 5, which has 80", subject_, gbps);
  }
  gids_ = port.attributes.gid_tbl_len > 0 ? std::min(port.attributes.gid_tbl_len, 255) : 16;
  if (library_.query_device == nullptr) return;
  const auto attributes = calls_.run("query_device", [call = library_.query_device, context = context_] {
    ibv_device_attr result{};
    if (call(context, &result) != 0) result = {};
    return result;
  });
  most_queue_pairs_ = attributes.value.max_qp;
  most_work_requests_ = attributes.value.max_qp_wr;
}

void VerbsDevice::find_gid(std::chrono::milliseconds patience) {
  const Deadline deadline = Deadline::after(patience);
  for (bool waited = false;; waited = true) {
    std::vector<std::string> seen;
    for (int index = 0; index < gids_; ++index) {
      const auto entry = calls_.run("query_gid", [call = library_.query_gid, context = context_, index] {
        std::pair<int, ibv_gid> result{};
        result.first = call(context, kPort, index, &result.second);
        return result;
      });
      const auto& [error, gid] = entry.value;
      if (error != 0) continue;
      if (is_ipv4_mapped(gid)) {
        gid_ = gid;
        gid_index_ = static_cast<uint8_t>(index);
        if (waited) spdlog::info("{}: its address came late, at index {}", subject_, index);
        return;
      }
      if (std::any_of(std::begin(gid.raw), std::end(gid.raw), [](uint8_t byte) { return byte != 0; })) {
        seen.push_back(fmt::format("{} at {}", text_of(gid), index));
      }
    }
    if (deadline.expired()) {
      fail(
          ErrorKind::system,
          "{} has no IPv4-mapped address (GID) among {} entries after {} s ({}): give its interface an IPv4 address; a "
          "link-local one will do, and the interface must be no member of a bridge",
          subject_, gids_, std::chrono::duration<double>(patience).count(),
          seen.empty() ? "all are empty" : fmt::format("there are {}", fmt::join(seen, ", ")));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

VerbsRegion::VerbsRegion(std::shared_ptr<VerbsDevice> device, const Slab& slab) : device_(std::move(device)) {
  const auto registered =
      device_->calls().run("reg_mr", [reg_mr = device_->library().reg_mr, pd = device_->pd(), data = slab.data(),
                                      size = slab.size()] { return reg_mr(pd, data, size, IBV_ACCESS_LOCAL_WRITE); });
  mr_ = registered.value;
  if (mr_ == nullptr) {
    fail(
        ErrorKind::system,
        "{} cannot register {} bytes: {}; a device takes some 100 regions, one a lane: end other programs that use it, "
        "or ask for fewer lanes",
        device_->subject(), slab.size(), std::strerror(registered.error));
  }
}

VerbsRegion::~VerbsRegion() {
  release(*device_, "dereg_mr", [dereg_mr = device_->library().dereg_mr, mr = mr_] { return dereg_mr(mr); });
}

void release(VerbsDevice& device, const char* name, const std::function<int()>& call) {
  if (device.calls().hangs()) return;
  try {
    const auto [result, error] = device.calls().run(name, call);
    if (result != 0) spdlog::warn("{}: {}: {}", device.subject(), name, std::strerror(result > 0 ? result : error));
  } catch (const std::exception& hang) {
    spdlog::warn("{}", hang.what());
  }
}

}  // namespace trunkline

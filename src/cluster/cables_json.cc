// A wiring as JSON, read and written.
#include <arpa/inet.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/fail.h"
#include "cluster/cables.h"
#include "cluster/parse_json.h"

namespace trunkline {
namespace {

using Json = nlohmann::ordered_json;

// One JSON object being read: each key is asked for by name, and one that nobody asked for is refused.
class Fields {
 public:
  Fields(const Json& json, std::string where) : json_(json), where_(std::move(where)) {
    if (!json.is_object()) fail(ErrorKind::input, "{}: is {}, not an object", where_, json.type_name());
  }

  const Json* find(const char* key) {
    asked_.push_back(key);
    const auto it = json_.find(key);
    return it == json_.end() ? nullptr : &*it;
  }

  void number(const char* key, double& value, double low, double high) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_number() || !(json->get<double>() >= low && json->get<double>() <= high)) {
      fail(ErrorKind::input, "{}: is {}, not a number from {} to {}", path(key), json->dump(), low, high);
    }
    value = json->get<double>();
  }

  template <typename Integer>
  void whole(const char* key, Integer& value, Integer low, Integer high) {
    const Json* json = find(key);
    if (json == nullptr) return;
    const bool fits = json->is_number_unsigned()  ? std::in_range<Integer>(json->get<uint64_t>())
                      : json->is_number_integer() ? std::in_range<Integer>(json->get<int64_t>())
                                                  : false;
    if (!fits || json->get<Integer>() < low || json->get<Integer>() > high) {
      fail(ErrorKind::input, "{}: is {}, not a whole number from {} to {}", path(key), json->dump(), low, high);
    }
    value = json->get<Integer>();
  }

  void flag(const char* key, bool& value) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_boolean()) fail(ErrorKind::input, "{}: is {}, not true or false", path(key), json->dump());
    value = json->get<bool>();
  }

  void text(const char* key, std::string& value) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_string()) fail(ErrorKind::input, "{}: is {}, not a string", path(key), json->dump());
    value = json->get<std::string>();
  }

  // Calls each(element, its path) for a list that may be absent.
  template <typename Each>
  void list(const char* key, Each each) {
    const Json* json = find(key);
    if (json == nullptr) return;
    if (!json->is_array()) fail(ErrorKind::input, "{}: is {}, not a list", path(key), json->type_name());
    for (size_t i = 0; i < json->size(); ++i) each((*json)[i], fmt::format("{}[{}]", path(key), i));
  }

  std::string path(std::string_view key) const { return fmt::format("{}: {}", where_, key); }

  void require(const char* key) {
    if (!json_.contains(key)) fail(ErrorKind::input, "{}: is missing", path(key));
  }

  void finish() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::find(asked_.begin(), asked_.end(), key) == asked_.end()) {
        fail(ErrorKind::input, "{}: is not a key here; there are {}", path(key), fmt::join(asked_, ", "));
      }
    }
  }

 private:
  const Json& json_;
  std::string where_;
  std::vector<std::string> asked_;
};

// "RANK.DEVICE": what a device is called everywhere in the file.
CableEnd parse_end(const Json& json, const std::string& where) {
  const std::string text = json.is_string() ? json.get<std::string>() : std::string();
  const size_t dot = text.find('.');
  const bool digits = dot != text.npos && dot > 0 && dot < 7 &&
                      std::all_of(text.begin(), text.begin() + static_cast<ptrdiff_t>(dot),
                                  [](char c) { return c >= '0' && c <= '9'; });
  const std::string device = dot == text.npos ? std::string() : text.substr(dot + 1);
  if (!digits || device.empty() || device.size() > 60) {
    fail(ErrorKind::input, "{}: is {}, not \"RANK.DEVICE\" such as \"0.rdma_en2\"", where, json.dump());
  }
  return {std::stoi(text.substr(0, dot)), device};
}

std::string format_end(const CableEnd& end) { return fmt::format("{}.{}", end.rank, end.device); }

void parse_call(const std::string& name, const std::string& where) {
  if (std::find(kDeviceCalls.begin(), kDeviceCalls.end(), name) == kDeviceCalls.end()) {
    fail(ErrorKind::input, "{}: \"{}\" is not one of {}", where, name, fmt::join(kDeviceCalls, ", "));
  }
}

// What "defaults" and each cable may say.
void read_cable_keys(Fields& fields, Cable& cable) {
  if (const Json* gbps = fields.find("gbps"); gbps != nullptr && gbps->is_null()) {
    cable.gbps.reset();
  } else if (gbps != nullptr) {
    double value = 0;
    fields.number("gbps", value, 1e-3, 1e5);
    cable.gbps = value;
  }
  fields.number("delay_us", cable.delay_us, 0, 1e7);
  fields.number("loss", cable.loss, 0, 1);
  fields.number("damage", cable.damage, 0, 1);
  fields.number("receive_error", cable.receive_error, 0, 1);
  fields.whole("link_gbps", cable.link_gbps, 40, 80);
  if (cable.link_gbps != 40 && cable.link_gbps != 80) {
    fail(ErrorKind::input, "{}: is {}, not 40 or 80", fields.path("link_gbps"), cable.link_gbps);
  }
}

Cable read_cable(const Json& json, const std::string& where, const Cable& defaults) {
  Cable cable = defaults;
  Fields fields(json, where);
  fields.require("ends");
  std::vector<CableEnd> ends;
  fields.list("ends", [&](const Json& end, const std::string& path) { ends.push_back(parse_end(end, path)); });
  if (ends.size() != 2) fail(ErrorKind::input, "{}: has {} entries, not two", fields.path("ends"), ends.size());
  std::copy(ends.begin(), ends.end(), cable.ends.begin());
  read_cable_keys(fields, cable);
  fields.list("cuts", [&](const Json& cut, const std::string& path) {
    Outage outage;
    Fields keys(cut, path);
    keys.require("at_ms");
    keys.number("at_ms", outage.cut_ms, 0, 1e9);
    keys.number("mend_ms", outage.mend_ms, 0, 1e9);
    keys.finish();
    cable.outages.push_back(outage);
  });
  fields.finish();
  return cable;
}

GidTable read_gids(const Json& json, const std::string& where) {
  GidTable table;
  Fields fields(json, where);
  fields.number("at_ms", table.at_ms, 0, 1e9);
  fields.list("table", [&](const Json& gid, const std::string& path) {
    in6_addr address;
    const std::string text = gid.is_string() ? gid.get<std::string>() : "no address";
    if (!text.empty() && ::inet_pton(AF_INET6, text.c_str(), &address) != 1) {
      fail(ErrorKind::input,
           "{}: is {}, not an IPv6 address such as \"::ffff:169.254.1.2\", or \"\" for an empty entry", path,
           gid.dump());
    }
    table.gids.push_back(text);
  });
  if (table.gids.size() > 64) fail(ErrorKind::input, "{}: has more than 64 entries", fields.path("table"));
  fields.finish();
  return table;
}

Device read_device(const Json& json, const std::string& where) {
  Device device;
  Fields fields(json, where);
  fields.require("device");
  const CableEnd name = parse_end(*fields.find("device"), fields.path("device"));
  device.rank = name.rank;
  device.name = name.device;
  fields.flag("port_down", device.port_down);
  fields.list("gids", [&](const Json& table, const std::string& path) {
    device.gids.push_back(read_gids(table, path));
    const size_t count = device.gids.size();
    if (count > 1 && device.gids[count - 2].at_ms >= device.gids[count - 1].at_ms) {
      fail(ErrorKind::input, "{}: at_ms: tables come in order of time", path);
    }
  });
  fields.list("hangs", [&](const Json& call, const std::string& path) {
    device.hangs.push_back(call.is_string() ? call.get<std::string>() : call.dump());
    parse_call(device.hangs.back(), path);
  });
  fields.number("hangs_at_ms", device.hangs_at_ms, 0, 1e9);
  if (const Json* errors = fields.find("errors"); errors != nullptr) {
    if (!errors->is_object()) fail(ErrorKind::input, "{}: is not an object", fields.path("errors"));
    Fields calls(*errors, fields.path("errors"));
    for (const auto& [call, code] : errors->items()) {
      parse_call(call, fields.path("errors"));
      calls.whole(call.c_str(), device.errors[call], 1, 4095);
    }
  }
  fields.finish();
  return device;
}

void read_limits(const Json& json, const std::string& where, DeviceLimits& limits) {
  Fields fields(json, where);
  fields.whole("queue_pairs", limits.queue_pairs, 1, 64);
  fields.flag("keep_crashed_queue_pairs", limits.keep_crashed_queue_pairs);
  fields.whole("work_requests", limits.work_requests, 1, 4095);
  fields.whole("advertised_work_requests", limits.advertised_work_requests, 1, 65535);
  fields.whole("scatter_entries", limits.scatter_entries, 1, 4);
  fields.whole("inline_bytes", limits.inline_bytes, 0, 4096);
  fields.whole("memory_regions", limits.memory_regions, 1, 4096);
  fields.whole("mtu", limits.mtu, 256, 4096);
  if (std::popcount(static_cast<unsigned>(limits.mtu)) != 1) {
    fail(ErrorKind::input, "{}: is {}, not one of 256, 512, 1024, 2048, 4096", fields.path("mtu"), limits.mtu);
  }
  fields.whole("message_bytes", limits.message_bytes, int64_t{1}, int64_t{16} << 20);
  fields.flag("resolve_gids", limits.resolve_gids);
  fields.finish();
}

}  // namespace

Wiring wiring_from_json(std::string_view text, const std::string& where, std::optional<int> ranks) {
  const Json json = parse_json(text, where);
  Wiring wiring;
  wiring.ranks = ranks.value_or(0);
  Fields fields(json, where);
  if (!ranks) fields.require("ranks");
  fields.whole("ranks", wiring.ranks, 1, 1024);
  if (ranks && *ranks != wiring.ranks) {
    fail(ErrorKind::input, "{}: is {}, but the job has {}", fields.path("ranks"), wiring.ranks, *ranks);
  }
  fields.whole("seed", wiring.seed, uint64_t{0}, UINT64_MAX);
  if (const Json* limits = fields.find("limits")) read_limits(*limits, fields.path("limits"), wiring.limits);
  Cable defaults;
  if (const Json* keys = fields.find("defaults")) {
    Fields cable_keys(*keys, fields.path("defaults"));
    read_cable_keys(cable_keys, defaults);
    cable_keys.finish();
  }
  fields.list("cables", [&](const Json& cable, const std::string& path) {
    wiring.cables.push_back(read_cable(cable, path, defaults));
  });
  fields.list("devices", [&](const Json& device, const std::string& path) {
    wiring.devices.push_back(read_device(device, path));
  });
  fields.finish();
  complete_wiring(wiring, where);
  return wiring;
}

std::string to_json(const Wiring& wiring) {
  const DeviceLimits& limits = wiring.limits;
  Json json = {{"ranks", wiring.ranks},
               {"seed", wiring.seed},
               {"limits",
                {{"queue_pairs", limits.queue_pairs},
                 {"keep_crashed_queue_pairs", limits.keep_crashed_queue_pairs},
                 {"work_requests", limits.work_requests},
                 {"advertised_work_requests", limits.advertised_work_requests},
                 {"scatter_entries", limits.scatter_entries},
                 {"inline_bytes", limits.inline_bytes},
                 {"memory_regions", limits.memory_regions},
                 {"mtu", limits.mtu},
                 {"message_bytes", limits.message_bytes},
                 {"resolve_gids", limits.resolve_gids}}}};
  json["cables"] = Json::array();
  for (const Cable& cable : wiring.cables) {
    Json entry = {{"ends", {format_end(cable.ends[0]), format_end(cable.ends[1])}}};
    entry["gbps"] = cable.gbps ? Json(*cable.gbps) : Json();
    entry["delay_us"] = cable.delay_us;
    entry["loss"] = cable.loss;
    entry["damage"] = cable.damage;
    entry["receive_error"] = cable.receive_error;
    entry["link_gbps"] = cable.link_gbps;
    entry["cuts"] = Json::array();
    for (const Outage& outage : cable.outages) {
      Json cut = {{"at_ms", outage.cut_ms}};
      if (!std::isinf(outage.mend_ms)) cut["mend_ms"] = outage.mend_ms;
      entry["cuts"].push_back(std::move(cut));
    }
    json["cables"].push_back(std::move(entry));
  }
  json["devices"] = Json::array();
  for (const Device& device : wiring.devices) {
    Json entry = {{"device", format_end({device.rank, device.name})}, {"port_down", device.port_down}};
    entry["gids"] = Json::array();
    for (const GidTable& table : device.gids) entry["gids"].push_back({{"at_ms", table.at_ms}, {"table", table.gids}});
    entry["hangs"] = device.hangs;
    entry["hangs_at_ms"] = device.hangs_at_ms;
    entry["errors"] = Json(device.errors);
    json["devices"].push_back(std::move(entry));
  }
  return json.dump(2) + "\n";
}

}  // namespace trunkline

#include "cli/bench_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/version.h"
#include "comm/operation.h"

namespace trunkline {
namespace {

std::string chosen_or(int number) { return number > 0 ? std::to_string(number) : "auto"; }

std::string_view reduction_of(Collective collective) {
  return collective == Collective::allreduce || collective == Collective::reducescatter ? "sum" : "none";
}

// As nccl-tests: -1 where there is none.
int root_of(const BenchOptions& options) { return options.collective == Collective::broadcast ? options.root : -1; }

nlohmann::ordered_json parts_json(const NsPerKib& parts) {
  return {{"verbs", parts.verbs},       {"copy", parts.copy}, {"reduce", parts.reduce}, {"checksum", parts.checksum},
          {"protocol", parts.protocol}, {"idle", parts.idle}, {"memcpy", parts.memcpy}};
}

}  // namespace

std::string_view name_of(Workers workers) {
  switch (workers) {
    case Workers::pool: return "pool";
    case Workers::per_call: return "per-call";
    case Workers::single: return "single";
  }
  return "";
}

std::string describe_place(const Group& group, bool emulated, const std::vector<CableTraffic>& cables) {
  std::set<std::string> hosts;
  for (int rank = 0; rank < group.size(); ++rank) hosts.insert(group.host_of(rank));
  const bool on_cables = std::ranges::any_of(cables, [](const CableTraffic& cable) { return cable.id != "tcp"; });
  const std::string_view link = group.size() == 1 ? "nobody to talk to"
                                : !on_cables      ? "TCP"
                                : emulated        ? "emulated RDMA cables"
                                                  : "RDMA cables";
  return fmt::format("{} rank{}, {} host{}, {}", group.size(), group.size() == 1 ? "" : "s", hosts.size(),
                     hosts.size() == 1 ? "" : "s", link);
}

std::string bench_header(const Group& group, const BenchOptions& options, const Config& config, bool emulated,
                         const std::vector<CableTraffic>& cables) {
  std::string text = fmt::format("# trunkline {} bench {}: {}\n", version(), name_of(options.collective),
                                 describe_place(group, emulated, cables));
  if (emulated) text += "# emulated: figures of software on this machine, not of Thunderbolt cables\n";
  text += fmt::format("# iterations {}, warm-up {}, workers {}, lanes {}, trunks {}, algorithm {}, crc {}{}{}\n",
                      options.iterations, options.warmup, name_of(config.workers), chosen_or(config.lanes),
                      config.trunks > 0 ? std::to_string(config.trunks) : "all", name_of(config.algorithm),
                      config.checksum ? "on" : "off", options.in_place ? ", in place" : "",
                      options.one_way ? ", one way" : "");
  if (!cables.empty()) text += "# last columns: bytes that rank 0 sent over each cable>rank a call\n";
  text += fmt::format("#\n# {:>12} {:>13} {:>9} {:>7} {:>5} {:>11} {:>11} {:>11} {:>8} {:>8} {:>8}", "size", "count",
                      "type", "redop", "root", "time", "p50", "p99", "algbw", "busbw", "#wrong");
  for (const CableTraffic& cable : cables) text += fmt::format(" {:>11}", fmt::format("{}>{}", cable.id, cable.peer));
  text += fmt::format("\n# {:>12} {:>13} {:>9} {:>7} {:>5} {:>11} {:>11} {:>11} {:>8} {:>8} {:>8}", "(B)", "(elements)",
                      "", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "");
  for (size_t i = 0; i < cables.size(); ++i) text += fmt::format(" {:>11}", "(B)");
  return text + "\n";
}

std::string bench_row(const BenchOptions& options, const BenchResult& result) {
  std::string text =
      fmt::format("  {:>12} {:>13} {:>9} {:>7} {:>5} {:>11.2f} {:>11.2f} {:>11.2f} {:>8.3f} {:>8.3f} {:>8}",
                  result.message.bytes, result.message.count, name_of(options.dtype), reduction_of(options.collective),
                  root_of(options), result.us.mean, result.us.p50, result.us.p99, result.algorithm_bytes_s * 1e-9,
                  result.bus_bytes_s * 1e-9, result.wrong ? std::to_string(*result.wrong) : "N/A");
  for (const CableBytes& cable : result.cables) text += fmt::format(" {:>11}", cable.sent);
  text += "\n";
  for (size_t rank = 0; rank < result.parts.size(); ++rank) {
    const NsPerKib& parts = result.parts[rank];
    text += fmt::format(
        "#   rank {}, ns/KiB: verbs {:.1f} copy {:.1f} reduce {:.1f} checksum {:.1f} protocol {:.1f} idle {:.1f}; "
        "memcpy "
        "{:.1f}\n",
        rank, parts.verbs, parts.copy, parts.reduce, parts.checksum, parts.protocol, parts.idle, parts.memcpy);
  }
  return text;
}

std::string bench_footer(const BenchOptions& options, uint64_t wrong, double bus_bytes_s) {
  std::string text;
  if (options.check) text += fmt::format("# Out of bounds values : {} {}\n", wrong, wrong == 0 ? "OK" : "FAILED");
  return text +
         fmt::format("# Avg bus bandwidth    : {:.4g} GB/s = {:.4g} Gbps\n", bus_bytes_s * 1e-9, gbps(bus_bytes_s));
}

nlohmann::ordered_json bench_json(const Group& group, const BenchOptions& options, const Config& config, bool emulated,
                                  const BenchResult& result) {
  nlohmann::ordered_json cables = nlohmann::ordered_json::array();
  for (const CableBytes& cable : result.cables) {
    cables.push_back(
        {{"id", cable.id}, {"bytes", cable.sent}, {"bytes_received", cable.received}, {"peer", cable.peer}});
  }
  nlohmann::ordered_json line = {
      {"bytes", result.message.bytes},
      {"time_us", result.us.mean},
      {"p50_us", result.us.p50},
      {"p99_us", result.us.p99},
      {"algbw_gbps", gbps(result.algorithm_bytes_s)},
      {"busbw_gbps", gbps(result.bus_bytes_s)},
      {"wrong", nullptr},
      {"cables", std::move(cables)},
  };
  if (result.wrong) line["wrong"] = *result.wrong;
  if (!result.parts.empty()) {
    line["ns_per_kib"] = parts_json(result.parts[0]);
    for (const NsPerKib& parts : result.parts) line["ns_per_kib_by_rank"].push_back(parts_json(parts));
  }
  line.update({{"collective", name_of(options.collective)},
               {"count", result.message.count},
               {"dtype", name_of(options.dtype)},
               {"ranks", group.size()},
               {"emulated", emulated},
               {"iterations", options.iterations},
               {"cpu_us", result.cpu_us},
               {"workers", name_of(config.workers)},
               {"algorithm", name_of(config.algorithm)},
               {"lanes", config.lanes},
               {"trunks", config.trunks},
               {"crc", config.checksum},
               {"in_place", options.in_place},
               {"one_way", options.one_way}});
  return line;
}

}  // namespace trunkline

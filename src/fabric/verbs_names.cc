// Names of enumerators, and rates.
#include <infiniband/verbs.h>

#include <array>
#include <string_view>

namespace {

template <size_t N>
const char* name_in(const std::array<const char*, N>& names, int value) {
  return value >= 0 && static_cast<size_t>(value) < N ? names[static_cast<size_t>(value)] : "unknown";
}

struct Rate {
  ibv_rate rate;
  int multiple;  // of 2.5 Gb/s, as the specification names it; 0: none
  int mbps;
};

constexpr Rate kRates[] = {
    {IBV_RATE_2_5_GBPS, 1, 2500},   {IBV_RATE_5_GBPS, 2, 5000},       {IBV_RATE_10_GBPS, 4, 10000},
    {IBV_RATE_20_GBPS, 8, 20000},   {IBV_RATE_30_GBPS, 12, 30000},    {IBV_RATE_40_GBPS, 16, 40000},
    {IBV_RATE_60_GBPS, 24, 60000},  {IBV_RATE_80_GBPS, 32, 80000},    {IBV_RATE_120_GBPS, 48, 120000},
    {IBV_RATE_14_GBPS, 0, 14062},   {IBV_RATE_56_GBPS, 0, 56250},     {IBV_RATE_112_GBPS, 0, 112500},
    {IBV_RATE_168_GBPS, 0, 168750}, {IBV_RATE_25_GBPS, 0, 25781},     {IBV_RATE_100_GBPS, 0, 103125},
    {IBV_RATE_200_GBPS, 0, 206250}, {IBV_RATE_300_GBPS, 0, 309375},   {IBV_RATE_28_GBPS, 0, 28125},
    {IBV_RATE_50_GBPS, 0, 53125},   {IBV_RATE_400_GBPS, 0, 425000},   {IBV_RATE_600_GBPS, 0, 637500},
    {IBV_RATE_800_GBPS, 0, 850000}, {IBV_RATE_1200_GBPS, 0, 1275000},
};

}  // namespace

extern "C" {

const char* ibv_wc_status_str(enum ibv_wc_status status) {
  static constexpr std::array<const char*, 24> kNames = {"success",
                                                         "local length error",
                                                         "local QP operation error",
                                                         "local EE context operation error",
                                                         "local protection error",
                                                         "work request flushed",
                                                         "memory bind error",
                                                         "bad response",
                                                         "local access error",
                                                         "remote invalid request error",
                                                         "remote access error",
                                                         "remote operation error",
                                                         "transport retry count exceeded",
                                                         "RNR retry count exceeded",
                                                         "local RDD violation",
                                                         "remote invalid RD request",
                                                         "aborted by remote",
                                                         "invalid EE context number",
                                                         "invalid EE context state",
                                                         "fatal error",
                                                         "response timeout",
                                                         "general error",
                                                         "tag matching error",
                                                         "tag matching rendezvous incomplete"};
  return name_in(kNames, static_cast<int>(status));
}

const char* ibv_node_type_str(enum ibv_node_type type) {
  static constexpr std::array<const char*, 8> kNames = {"unknown",           "InfiniBand channel adapter",
                                                        "InfiniBand switch", "InfiniBand router",
                                                        "iWARP NIC",         "usNIC",
                                                        "usNIC UDP",         "unspecified"};
  return name_in(kNames, static_cast<int>(type));
}

const char* ibv_port_state_str(enum ibv_port_state state) {
  static constexpr std::array<const char*, 6> kNames = {"no state change (NOP)", "down", "init", "armed", "active",
                                                        "active deferred"};
  return name_in(kNames, static_cast<int>(state));
}

const char* ibv_event_type_str(enum ibv_event_type event) {
  static constexpr std::array<const char*, 20> kNames = {"CQ error",
                                                         "local work queue catastrophic error",
                                                         "invalid request local work queue error",
                                                         "local access violation work queue error",
                                                         "communication established",
                                                         "send queue drained",
                                                         "path migrated",
                                                         "path migration request error",
                                                         "local catastrophic error",
                                                         "port active",
                                                         "port error",
                                                         "LID change",
                                                         "P_Key change",
                                                         "SM change",
                                                         "SRQ catastrophic error",
                                                         "SRQ limit reached",
                                                         "last WQE reached",
                                                         "client reregistration",
                                                         "GID change",
                                                         "WQ fatal error"};
  return name_in(kNames, static_cast<int>(event));
}

int ibv_rate_to_mult(enum ibv_rate rate) {
  for (const Rate& entry : kRates) {
    if (entry.rate == rate && entry.multiple != 0) return entry.multiple;
  }
  return -1;
}

enum ibv_rate mult_to_ibv_rate(int multiple) {
  for (const Rate& entry : kRates) {
    if (entry.multiple == multiple && multiple != 0) return entry.rate;
  }
  return IBV_RATE_MAX;
}

int ibv_rate_to_mbps(enum ibv_rate rate) {
  for (const Rate& entry : kRates) {
    if (entry.rate == rate) return entry.mbps;
  }
  return -1;
}

enum ibv_rate mbps_to_ibv_rate(int mbps) {
  for (const Rate& entry : kRates) {
    if (entry.mbps == mbps) return entry.rate;
  }
  return IBV_RATE_MAX;
}

}  // extern "C"

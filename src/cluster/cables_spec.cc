// K[:key=value,...], the short form of a wiring.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "cluster/cables.h"

namespace trunkline {
namespace {

constexpr const char* kForm = "--cables K[:key=value,...]";

double number(std::string_view key, std::string_view text, double low, double high) {
  const nlohmann::json value = nlohmann::json::parse(text, nullptr, false);  // as in a FILE; not every from_chars can
  if (!value.is_number() || value < low || value > high) {
    fail(ErrorKind::input, "{}: {}: \"{}\" is not a number from {} to {}", kForm, key, text, low, high);
  }
  return value;
}

template <typename Integer>
Integer whole(std::string_view key, std::string_view text, Integer low, Integer high) {
  Integer value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < low || value > high) {
    fail(ErrorKind::input, "{}: {}: \"{}\" is not a whole number from {} to {}", kForm, key, text, low, high);
  }
  return value;
}

// cut=A-B.I@MS or mend=A-B.I@MS.
struct Event {
  int a, b, cable;
  bool cut;
  double at_ms;
};

Event parse_event(std::string_view key, std::string_view text, int ranks, int cables) {
  const size_t dash = text.find('-');
  const size_t dot = text.find('.', dash);
  const size_t at = text.find('@', dot);
  if (dash == text.npos || dot == text.npos || at == text.npos) {
    fail(ErrorKind::input, "{}: {}: \"{}\" is not A-B.I@MS (cable I between ranks A and B, MS milliseconds)", kForm,
         key, text);
  }
  Event event;
  event.cut = key == "cut";
  event.a = whole(key, text.substr(0, dash), 0, ranks - 1);
  event.b = whole(key, text.substr(dash + 1, dot - dash - 1), 0, ranks - 1);
  event.cable = whole(key, text.substr(dot + 1, at - dot - 1), 0, cables - 1);
  event.at_ms = number(key, text.substr(at + 1), 0, 1e9);
  if (event.a == event.b) fail(ErrorKind::input, "{}: {}: \"{}\" names one rank twice", kForm, key, text);
  if (event.a > event.b) std::swap(event.a, event.b);
  return event;
}

// A mend belongs to the last cut of its cable.
void apply(const Event& event, std::vector<Outage>& outages) {
  const bool is_cut = !outages.empty() && std::isinf(outages.back().mend_ms);
  if (event.cut == is_cut) {
    fail(ErrorKind::input, "{}: cable {}-{}.{} is {} at {} ms, when it is {} already", kForm, event.a, event.b,
         event.cable, event.cut ? "cut" : "mended", event.at_ms, event.cut ? "cut" : "whole");
  }
  if (event.cut) {
    outages.push_back({.cut_ms = event.at_ms});
  } else {
    outages.back().mend_ms = event.at_ms;
  }
}

}  // namespace

Wiring wiring_from_spec(std::string_view spec, int ranks) {
  Wiring wiring;
  wiring.ranks = ranks;
  const size_t colon = spec.find(':');
  const int cables = whole("K", spec.substr(0, colon), 1, 64);
  Cable pattern;
  std::vector<Event> events;
  std::string_view rest = colon == spec.npos ? std::string_view() : spec.substr(colon + 1);
  if (colon != spec.npos && rest.empty()) fail(ErrorKind::input, "{}: nothing follows the colon", kForm);
  for (bool more = !rest.empty(); more;) {
    const size_t comma = rest.find(',');
    const std::string_view item = rest.substr(0, comma);
    more = comma != rest.npos;
    if (more) rest = rest.substr(comma + 1);
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    const std::string_view value = equals == item.npos ? std::string_view() : item.substr(equals + 1);
    if (key == "gbps") {
      pattern.gbps = number(key, value, 1e-3, 1e5);
    } else if (key == "delay_us") {
      pattern.delay_us = number(key, value, 0, 1e7);
    } else if (key == "loss") {
      pattern.loss = number(key, value, 0, 1);
    } else if (key == "damage") {
      pattern.damage = number(key, value, 0, 1);
    } else if (key == "seed") {
      wiring.seed = whole<uint64_t>(key, value, 0, UINT64_MAX);
    } else if (key == "cut" || key == "mend") {
      events.push_back(parse_event(key, value, ranks, cables));
    } else {
      fail(ErrorKind::input, "{}: \"{}\" is not one of gbps, delay_us, loss, damage, seed, cut, mend", kForm, item);
    }
  }
  std::stable_sort(events.begin(), events.end(), [](const Event& x, const Event& y) { return x.at_ms < y.at_ms; });

  // Devices are numbered rank by rank from rdma_en2 on, as a Mac's Thunderbolt ports are.
  std::vector<int> next_device(static_cast<size_t>(ranks), 2);
  for (int a = 0; a < ranks; ++a) {
    for (int b = a + 1; b < ranks; ++b) {
      for (int i = 0; i < cables; ++i) {
        Cable cable = pattern;
        cable.ends[0] = {a, fmt::format("rdma_en{}", next_device[static_cast<size_t>(a)]++)};
        cable.ends[1] = {b, fmt::format("rdma_en{}", next_device[static_cast<size_t>(b)]++)};
        for (const Event& event : events) {
          if (event.a == a && event.b == b && event.cable == i) apply(event, cable.outages);
        }
        wiring.cables.push_back(std::move(cable));
      }
    }
  }
  complete_wiring(wiring, kForm);
  return wiring;
}

}  // namespace trunkline

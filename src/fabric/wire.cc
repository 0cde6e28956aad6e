#include "fabric/wire.h"

#include <algorithm>

#include "base/random.h"

namespace trunkline {

Fate fate_of(const Cable& cable, uint64_t seed, size_t cable_index, int direction, uint64_t n) {
  // Four numbers into one, each step a bijection of 64 bits; Random's own seeding mixes the rest.
  uint64_t mixed = seed;
  for (const uint64_t part : {static_cast<uint64_t>(cable_index), static_cast<uint64_t>(direction), n}) {
    mixed = Random(mixed + part).next();
  }
  Random random(mixed);
  Fate fate;
  fate.lost = random.uniform() < cable.loss;
  const bool damaged = random.uniform() < cable.damage;
  fate.receive_error = random.uniform() < cable.receive_error;
  if (damaged) fate.damage = random.next() | 1;
  return fate;
}

void apply_damage(uint64_t damage, std::span<const std::span<std::byte>> parts) {
  size_t size = 0;
  for (const std::span<std::byte> part : parts) size += part.size();
  if (size == 0) return;
  Random random(damage);
  const size_t from = random.below(size);
  const size_t to = std::min<size_t>(from + 1 + random.below(8), size);
  size_t at = 0;
  for (const std::span<std::byte> part : parts) {
    for (std::byte& byte : part) {
      if (at >= from && at < to) byte ^= static_cast<std::byte>(at == from ? 1 + random.below(255) : random.below(256));
      ++at;
    }
  }
}

Passage Wire::take(uint64_t bytes, uint64_t now) {
  uint64_t start = now;
  uint64_t end = now;
  if (cable_.gbps) {
    const auto duration = static_cast<uint64_t>(static_cast<double>(bytes) * 8 / *cable_.gbps);  // 1 Gbps: a bit a ns
    uint64_t busy = state_.busy_until_ns.load(std::memory_order_relaxed);
    do {
      start = std::max(now, busy);
      end = start + duration;
    } while (!state_.busy_until_ns.compare_exchange_weak(busy, end, std::memory_order_relaxed));
  }
  Passage passage{cable_.gbps ? end : 0, end + delay_ns_, {}};
  if (has_fates_) {
    const uint64_t n = state_.messages.fetch_add(1, std::memory_order_relaxed);
    passage.fate = fate_of(cable_, segment_.wiring().seed, index_, direction_, n);
  }
  if (!cable_.outages.empty() && cut_at(start, passage.visible_ns)) passage.fate.lost = true;
  return passage;
}

bool Wire::cut_at(uint64_t from_ns, uint64_t to_ns) const {
  const uint64_t connected = segment_.connected_ns();
  if (connected == 0) return false;
  const double from_ms = (static_cast<double>(from_ns) - static_cast<double>(connected)) * 1e-6;
  const double to_ms = (static_cast<double>(to_ns) - static_cast<double>(connected)) * 1e-6;
  return std::any_of(cable_.outages.begin(), cable_.outages.end(),
                     [&](const Outage& outage) { return to_ms >= outage.cut_ms && from_ms < outage.mend_ms; });
}

}  // namespace trunkline

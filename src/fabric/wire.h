// One direction of a cable: when what is posted on it arrives, and whether.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cluster/cables.h"
#include "fabric/segment.h"

namespace trunkline {

// What becomes of the n-th message of a direction: always the same for the same seed.
struct Fate {
  bool lost = false;
  bool receive_error = false;
  uint64_t damage = 0;  // 0: none; otherwise a seed for apply_damage
  bool operator==(const Fate&) const = default;
};
Fate fate_of(const Cable& cable, uint64_t seed, size_t cable_index, int direction, uint64_t n);

// Changes one to eight neighbouring bytes of what `parts` hold together.
void apply_damage(uint64_t damage, std::span<const std::span<std::byte>> parts);

struct Passage {
  uint64_t taken_ns;    // when the cable has taken the last byte: the send completes; 0: at once
  uint64_t visible_ns;  // when that byte is at the other end
  Fate fate;
};

class Wire {
 public:
  Wire(Segment& segment, size_t cable, int direction)
      : segment_(segment),
        cable_(segment.wiring().cables[cable]),
        state_(segment.direction(cable, direction)),
        index_(cable),
        direction_(direction),
        has_fates_(cable_.loss > 0 || cable_.damage > 0 || cable_.receive_error > 0),
        delay_ns_(static_cast<uint64_t>(cable_.delay_us * 1e3)) {}

  // Posts a message. Messages of all queue pairs go one after the other, in the order of their posting.
  Passage take(uint64_t bytes, uint64_t now);
  bool cut_at(uint64_t from_ns, uint64_t to_ns) const;
  uint64_t delay_ns() const { return delay_ns_; }

 private:
  Segment& segment_;
  const Cable& cable_;
  Direction& state_;
  size_t index_;
  int direction_;
  bool has_fates_;
  uint64_t delay_ns_;
};

}  // namespace trunkline

#include "link/frame_simulator_test.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <set>

#include "base/random.h"
#include "link/simulated_cable_test.h"

namespace trunkline::simulator {
namespace {

constexpr uint64_t kMaxLooks = 3'000'000;  // of both ranks; more: they turn in circles

// The byte at `position` of a stream.
std::byte pattern(size_t step, size_t from, size_t phase, uint64_t position) {
  uint64_t mixed = position + (step << 40) + (from << 38) + (phase << 36);
  mixed = (mixed ^ (mixed >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<std::byte>(mixed >> 56);
}

struct Filled {
  uint32_t slot;
  size_t size;
  uint64_t place;
};

// One rank: the driver of a protocol, and the layer above.
class Rank {
 public:
  Rank(const Schedule& schedule, size_t index, std::vector<Way*> out, std::vector<Way*> in, Outcome& outcome)
      : schedule_(schedule),
        index_(index),
        out_(std::move(out)),
        in_(std::move(in)),
        outcome_(outcome),
        random_(schedule.seed * 2 + index),
        protocol_(options()),
        receives_(in_.size()),
        filled_(in_.size()),
        taken_(in_.size()),
        taken_count_(in_.size()) {
    slot_bytes_ = std::max(kFrameHeaderBytes + schedule.frame_bytes, max_credit_bytes(out_.size()));
    slots_.resize(2 * schedule.slots * slot_bytes_);
    for (uint32_t i = 0; i < 2 * schedule.slots; ++i) free_[i < schedule.slots ? 0 : 1].push_back(i);
    size_t count = 0;
    for (size_t link = 0; link < in_.size(); ++link) {
      for (size_t i = 0; i < schedule.cables[link].receives[index]; ++i) {
        receives_[link].push_back(static_cast<uint32_t>(count++));
      }
    }
    received_.resize(count * slot_bytes_);
  }

  FrameProtocol& protocol() { return protocol_; }
  bool done() const { return step_ == schedule_.steps.size() && protocol_.quiet(); }
  bool over() const { return protocol_.fault().has_value() || !failure_.empty(); }
  const std::string& failure() const { return failure_; }
  uint64_t progress() const { return progress_; }  // rises
  std::string where() const {
    return fmt::format("rank {} in step {} of {}, {}, {}", index_, step_, schedule_.steps.size(),
                       begun_ ? (protocol_.finished() ? "finished" : "not finished") : "not begun",
                       protocol_.quiet() ? "quiet" : "with frames that are not named");
  }

  // When it looks next.
  FrameTime next_look() const {
    if (schedule_.death && index_ == 1 && rest_until_ >= *schedule_.death) return kNever;
    FrameTime at = protocol_.wake_at();
    if (at > last_look_ && want_now_) at = last_look_;
    for (const Way* way : out_) at = way->has_completions() ? FrameTime(0) : std::min(at, way->next_completion());
    for (const Way* way : in_) at = std::min(at, way->next_arrival());
    for (const auto& each : filled_) at = each.empty() ? at : FrameTime(0);
    if (!kept_.empty()) at = std::min(at, kept_until_);
    return at == kNever ? kNever : std::max(at, rest_until_);
  }

  void look(FrameTime now, Rank& other) {
    last_look_ = now;
    want_now_ = false;
    const Attention& attention = schedule_.attention[index_];
    rest_until_ = now + attention.poll_min + between(attention.poll_max - attention.poll_min);
    if (overslept_ > std::chrono::seconds(1)) protocol_.was_stopped(overslept_, now);
    overslept_ = FrameTime(0);
    if (random_.uniform() < attention.pause_chance) {
      overslept_ = between(attention.pause_max);
      rest_until_ += overslept_;
    }

    receive(now);
    for (size_t link = 0; link < out_.size(); ++link) {
      for (size_t n = out_[link]->take_completions(); n > 0; --n) protocol_.completed(link, now);
    }
    collect(now);
    work(now);
    protocol_.advance(now);
    while (const auto post = protocol_.next_post(now)) send(*post, other, now);
    collect_released();
  }

  // What the cables have brought by now goes into posted receives, whether or not anybody looks.
  void fill(FrameTime now) {
    for (size_t link = 0; link < in_.size(); ++link) {
      auto& flying = in_[link]->flying();
      while (!flying.empty() && flying.front().arrival <= now) {
        const Message& message = flying.front();
        if (receives_[link].empty()) {
          ++outcome_.overrun;
          if (message.reckoned) fault(fmt::format("link {} was sent more than it has receives for", link));
        } else {
          const uint32_t slot = receives_[link].front();
          receives_[link].pop_front();
          std::copy(message.bytes.begin(), message.bytes.end(), received_.begin() + slot * slot_bytes_);
          filled_[link].push_back({slot, message.bytes.size(), message.place});
        }
        flying.pop_front();
      }
    }
  }

 private:
  struct Kept {
    Delivery delivery;
    FrameTime until;
  };

  FrameProtocol::Options options() const {
    FrameProtocol::Options options;
    options.generation = schedule_.clash == Clash::generation && index_ == 1 ? 8 : 7;
    options.frame_bytes = schedule_.frame_bytes;
    options.checksum = schedule_.checksum;
    options.slots = 2 * schedule_.slots;
    options.home = schedule_.seed % out_.size();
    options.credit_reserve = schedule_.credit_reserve;
    options.times.ask_floor = schedule_.ask_floor;
    options.deadline = schedule_.deadline;
    for (const Cable& each : schedule_.cables) {
      options.links.push_back({each.send_depth, each.receives[index_], each.receives[1 - index_]});
    }
    return options;
  }

  FrameTime between(FrameTime most) {
    return most.count() <= 0 ? FrameTime(0)
                             : FrameTime(static_cast<int64_t>(random_.below(static_cast<uint64_t>(most.count()))));
  }

  void fault(std::string what) {
    if (failure_.empty()) failure_ = std::move(what);
  }

  void receive(FrameTime now) {
    for (size_t link = 0; link < in_.size(); ++link) {
      for (; !filled_[link].empty(); filled_[link].pop_front()) {
        const Filled filled = filled_[link].front();
        taken_[link].push_back({taken_count_[link]++, filled.place});
        const Frame frame = read_frame({received_.data() + filled.slot * slot_bytes_, filled.size}, schedule_.checksum);
        if (!protocol_.arrived(link, filled.slot, frame, now)) repost(link, filled.slot, now);
      }
    }
  }

  void repost(size_t link, uint32_t slot, FrameTime now) {
    std::fill_n(received_.begin() + slot * slot_bytes_, slot_bytes_, std::byte{0xee});
    receives_[link].push_back(slot);
    protocol_.reposted(link, now);
  }

  // Whether the protocol reckons with all messages of a link that are on their way, wait to be taken, or were taken
  // after what it last heard. It need not if it took some for lost that were only late.
  bool reckons(size_t link, Rank& other) const {
    const FrameLink& own = protocol_.link(link);
    bool all = out_[link]->all_unresolved(own);
    for (const Filled& each : other.filled_[link]) all = all && own.is_unresolved(each.place);
    auto& taken = other.taken_[link];
    while (!taken.empty() && taken.front().first < own.peer().taken) taken.pop_front();
    for (const auto& each : taken) all = all && own.is_unresolved(each.second);
    return all;
  }

  void send(const FrameProtocol::Post& post, Rank& other, FrameTime now) {
    Message message{};
    message.place = post.place;
    message.reckoned = reckons(post.link, other);
    if (post.credit) {
      message.bytes.resize(slot_bytes_);
      message.size = protocol_.write_credit(post, message.bytes);
      message.bytes.resize(message.size);
    } else {
      message.slot = slots_.data() + post.slot * slot_bytes_;
      message.size = post.bytes;
    }
    ++outcome_.messages;
    out_[post.link]->post(now, std::move(message));
  }

  // --- the layer above

  void collect(FrameTime now) {
    while (const auto delivery = protocol_.next_delivery()) {
      check(*delivery);
      kept_.push_back({*delivery, now + between(schedule_.attention[index_].consume_max)});
    }
    consume(now);
  }

  // Contributions are consumed in order, and where results depend on them each takes a slot; the rest in any order.
  void consume(FrameTime now) {
    kept_until_ = kNever;
    for (bool again = true; again;) {
      again = false;
      for (size_t i = 0; i < kept_.size();) {
        const Delivery delivery = kept_[i].delivery;
        const bool ready =
            delivery.phase != 0 || (delivery.offset == consumed_ * schedule_.frame_bytes && can_reduce());
        if (!ready) {
          ++i;
          continue;
        }
        if (kept_[i].until > now) {
          kept_until_ = std::min(kept_until_, kept_[i].until);
          ++i;
          continue;
        }
        if (delivery.phase == 0) {
          ++consumed_;
          again = true;
        }
        repost(delivery.link, delivery.slot, now);
        kept_[i] = kept_.back();
        kept_.pop_back();
        offer(now);
      }
    }
  }

  bool can_reduce() {
    if (!schedule_.steps[step_].dependent || offered_[1] >= frames_of(index_, 1)) return true;
    return consumed_ <= offered_[1];
  }

  uint64_t frames_of(size_t from, size_t phase) const {
    return (schedule_.steps[step_].gives[from][phase] + schedule_.frame_bytes - 1) / schedule_.frame_bytes;
  }

  void check(const Delivery& delivery) {
    const uint64_t bytes = schedule_.steps[step_].gives[1 - index_][delivery.phase];
    const std::byte* payload = received_.data() + delivery.slot * slot_bytes_ + kFrameHeaderBytes;
    const uint64_t expected = std::min<uint64_t>(schedule_.frame_bytes, bytes - std::min(bytes, delivery.offset));
    if (delivery.length != expected || !came_[delivery.phase].insert(delivery.offset).second) {
      return fault(fmt::format("step {}: a frame of {} bytes at {} of phase {}, twice or wrong", step_, delivery.length,
                               delivery.offset, delivery.phase));
    }
    for (uint32_t i = 0; i < delivery.length; ++i) {
      if (payload[i] != pattern(step_, 1 - index_, delivery.phase, delivery.offset + i)) {
        return fault(fmt::format("step {}: wrong data at {} of phase {}", step_, delivery.offset + i, delivery.phase));
      }
    }
    received_bytes_[delivery.phase] += delivery.length;
    ++progress_;
  }

  void work(FrameTime now) {
    while (step_ < schedule_.steps.size() && !over()) {
      if (!begun_) begin(now);
      if (over()) return;
      collect(now);
      offer(now);
      const bool given = std::all_of(offered_.begin(), offered_.end(), [&, phase = size_t{0}](uint64_t n) mutable {
        return n == frames_of(index_, phase++);
      });
      if (!given || !kept_.empty() || !protocol_.finished()) return;
      if (received_bytes_ != schedule_.steps[step_].gives[1 - index_] && schedule_.clash == Clash::none) {
        return fault(fmt::format("step {} is said to have finished, without all its bytes", step_));
      }
      protocol_.flush();
      ++step_;
      ++progress_;
      begun_ = false;
      want_now_ = step_ < schedule_.steps.size();
      if (random_.below(2) == 0) return;
    }
  }

  void begin(FrameTime now) {
    const Step& step = schedule_.steps[step_];
    FrameOperation own = step.operation, expected = step.operation;
    auto gives = step.gives[index_], gets = step.gives[1 - index_];
    if (step_ == schedule_.clash_at && index_ == 1) {
      switch (schedule_.clash) {
        case Clash::dtype: own.dtype = expected.dtype = static_cast<uint8_t>(own.dtype + 1); break;
        case Clash::count: own.count = expected.count = own.count + 1; break;
        case Clash::kind: own.kind = expected.kind = static_cast<uint8_t>(own.kind + 1); break;
        case Clash::order:
          own.pairwise = expected.pairwise = !own.pairwise;
          own.number = expected.number = 1000;
          break;
        case Clash::size: gets[1] = gets[1] > 0 ? gets[1] - 1 : 1; break;
        default: break;
      }
    }
    protocol_.begin(own, expected, gives, gets, now);
    begun_ = true;
    offered_ = {};
    consumed_ = 0;
    received_bytes_ = {};
    for (auto& each : came_) each.clear();
  }

  void offer(FrameTime) {
    if (!begun_) return;
    const Step& step = schedule_.steps[step_];
    for (uint8_t phase = 0; phase < kFramePhases; ++phase) {
      while (offered_[phase] < frames_of(index_, phase) && protocol_.has_room(phase)) {
        if (phase == 1 && step.dependent && offered_[1] >= consumed_ && consumed_ < frames_of(1 - index_, 0)) break;
        if (free_[phase == 0 ? 0 : 1].empty()) collect_released();
        auto& free = free_[phase == 0 ? 0 : 1];
        if (free.empty()) break;
        const size_t which = random_.below(free.size());
        const uint32_t slot = std::exchange(free[which], free.back());
        free.pop_back();
        stage(slot, phase, offered_[phase]++ * schedule_.frame_bytes);
      }
    }
  }

  void stage(uint32_t slot, uint8_t phase, uint64_t offset) {
    const Step& step = schedule_.steps[step_];
    FrameHeader header;
    header.generation = schedule_.clash == Clash::generation && index_ == 1 ? 8 : 7;
    FrameOperation own = step.operation;
    if (step_ == schedule_.clash_at && index_ == 1) {
      if (schedule_.clash == Clash::dtype) ++own.dtype;
      if (schedule_.clash == Clash::count) ++own.count;
      if (schedule_.clash == Clash::kind) ++own.kind;
      if (schedule_.clash == Clash::order) own.pairwise = !own.pairwise, own.number = 1000;
    }
    header.set_operation(own);
    header.phase = phase;
    header.offset = offset;
    header.stream_bytes = step.gives[index_][phase];
    header.length = static_cast<uint32_t>(std::min<uint64_t>(schedule_.frame_bytes, header.stream_bytes - offset));
    const std::span<std::byte> bytes(slots_.data() + slot * slot_bytes_, slot_bytes_);
    for (uint32_t i = 0; i < header.length; ++i) {
      bytes[kFrameHeaderBytes + i] = pattern(step_, index_, phase, offset + i);
    }
    seal_frame(bytes, header, schedule_.checksum);
    protocol_.offer(phase, offset, header.length, slot);
  }

  void collect_released() {
    while (const auto slot = protocol_.released()) {
      std::fill_n(slots_.begin() + *slot * slot_bytes_, slot_bytes_, std::byte{0xdd});
      free_[*slot < schedule_.slots ? 0 : 1].push_back(*slot);
      want_now_ = true;
    }
  }

  const Schedule& schedule_;
  const size_t index_;
  std::vector<Way*> out_, in_;
  Outcome& outcome_;
  Random random_;
  FrameProtocol protocol_;
  size_t slot_bytes_ = 0;
  std::vector<std::byte> slots_, received_;
  std::array<std::vector<uint32_t>, 2> free_;
  std::vector<std::deque<uint32_t>> receives_;
  std::vector<std::deque<Filled>> filled_;
  std::vector<std::deque<std::pair<uint64_t, uint64_t>>> taken_;  // number and place of messages that the sender has
                                                                  // not heard of, by link
  std::vector<uint64_t> taken_count_;
  FrameTime rest_until_{0}, last_look_{0}, kept_until_ = kNever;
  FrameTime overslept_{0};  // as if its process had been stopped
  bool want_now_ = true;
  std::string failure_;

  size_t step_ = 0;
  uint64_t progress_ = 0;
  bool begun_ = false;
  std::array<uint64_t, kFramePhases> offered_{}, received_bytes_{};
  uint64_t consumed_ = 0;  // contributions
  std::array<std::set<uint64_t>, kFramePhases> came_;
  std::vector<Kept> kept_;
};

}  // namespace

Outcome simulate(const Schedule& schedule) {
  Outcome outcome;
  std::vector<Way> ways;  // of cable i: to rank 0, to rank 1
  ways.reserve(2 * schedule.cables.size());
  std::array<std::vector<Way*>, 2> to;
  for (const Cable& each : schedule.cables) {
    for (size_t rank = 0; rank < 2; ++rank) {
      ways.emplace_back(each, rank, schedule.seed * 977 + ways.size());
      to[rank].push_back(&ways.back());
    }
  }
  std::array<Rank, 2> ranks{Rank(schedule, 0, to[1], to[0], outcome), Rank(schedule, 1, to[0], to[1], outcome)};

  FrameTime now{0};
  uint64_t delivered = 0;
  FrameTime last_delivery{0};
  const uint64_t max_looks = kMaxLooks * std::max<size_t>(1, schedule.steps.size() / 10);
  bool hung = false;
  for (uint64_t looks = 0;; ++looks) {
    // The control connection tells of the end and of errors.
    if (ranks[0].over() || ranks[1].over() || (ranks[0].done() && ranks[1].done())) break;
    const size_t next = ranks[1].next_look() < ranks[0].next_look() ? 1 : 0;
    const FrameTime at = ranks[next].next_look();
    // A dead rank answers nothing: the other one is through with it, or finds out.
    if (schedule.death && ranks[1].next_look() == kNever && (at == kNever || ranks[0].done())) break;
    hung = at == kNever || looks > max_looks || now > last_delivery + 10 * schedule.deadline;
    if (hung) break;
    now = std::max(now, at);
    for (Way& way : ways) way.move(now);
    for (Rank& rank : ranks) rank.fill(now);
    ranks[next].look(now, ranks[1 - next]);
    if (std::exchange(delivered, ranks[0].progress() + ranks[1].progress()) != delivered) last_delivery = now;
  }
  outcome.took = now;
  for (Rank& rank : ranks) {
    outcome.damaged += rank.protocol().counts().damaged;
    outcome.lost += rank.protocol().counts().lost;
    outcome.duplicates += rank.protocol().counts().duplicates;
    outcome.credits += rank.protocol().counts().credits;
    outcome.repeats += rank.protocol().repeats();
  }
  for (const Rank& rank : ranks) {
    if (!rank.failure().empty() && outcome.failure.empty()) outcome.failure = rank.failure();
  }
  if (!outcome.failure.empty()) return outcome;
  if (hung) {
    outcome.failure = fmt::format("hangs after {} ms: {}; {}, clash {}", now.count() / 1'000'000, ranks[0].where(),
                                  ranks[1].where(), static_cast<int>(schedule.clash));
    return outcome;
  }
  for (Rank& rank : ranks) {
    const auto& fault = rank.protocol().fault();
    if (!fault) continue;
    outcome.error = true;
    const bool mismatch =
        fault->kind == ErrorKind::mismatch || (schedule.clash == Clash::size && fault->kind == ErrorKind::peer);
    const bool due =
        (schedule.clash != Clash::none && mismatch) || (schedule.may_fail() && fault->kind == ErrorKind::timeout);
    if (!due) {
      outcome.failure = fmt::format("an error without a cause: {}", fault->text);
    }
  }
  if (schedule.clash != Clash::none && !outcome.error) outcome.failure = "no error, although the ranks disagree";
  return outcome;
}

}  // namespace trunkline::simulator

#include "link/verbs_proof.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <thread>

#include "base/clock.h"
#include "base/crc32c.h"
#include "base/fail.h"
#include "base/log.h"
#include "link/message.h"
#include "link/verbs_link.h"

namespace trunkline {
namespace {

using namespace std::chrono_literals;

constexpr auto kFirstPatience = 250ms;  // of a round; doubled when all have been tried
constexpr auto kProofTime = 10s;        // then a cable that nothing has crossed leads nowhere
constexpr auto kInterval = 1ms;         // between the messages of a device that is not answered
constexpr int kAnswers = 2;             // in case that one is lost
constexpr size_t kSlot = 64;

// What a device says over its cable.
struct Word {
  static constexpr uint32_t kMagic = 0x504b5254;  // "TRKP"
  static constexpr uint32_t kNobody = UINT32_MAX;

  uint32_t magic = kMagic;
  uint32_t checksum = 0;  // CRC32C, with zero here
  uint64_t nonce = 0;     // that its rank has told all others
  uint32_t rank = 0, index = 0;
  uint32_t heard_rank = kNobody, heard_index = kNobody;

  uint32_t sum() const {
    Word copy = *this;
    copy.checksum = 0;
    return crc32c(&copy, sizeof copy);
  }
};
static_assert(sizeof(Word) == 32);

struct Probe {
  Port self, partner;
  std::shared_ptr<VerbsDevice> device;
  std::shared_ptr<VerbsLink> link;
  std::byte* memory = nullptr;  // receive slots, then one to send from
  size_t receives = 0;
  bool hopeless = false;  // one of the two ends could not be connected
  std::optional<Port> heard;
  bool answered = false, sending = false;
  int answers = 0;  // sent since it has heard
  Clock::time_point next = Clock::now();

  bool finished() const { return hopeless || (heard && answered && answers >= kAnswers); }
  std::byte* outgoing() const { return memory + receives * kSlot; }
};

class Prover {
 public:
  Prover(const TrunkOptions& options, const Ports& ports, const std::vector<std::shared_ptr<VerbsDevice>>& devices,
         const Exchange& exchange)
      : options_(options),
        ports_(ports),
        rank_(static_cast<size_t>(options.rank)),
        devices_(devices),
        exchange_(exchange),
        deadline_(Deadline::after(std::min<std::chrono::milliseconds>(options.timeout, kProofTime))),
        depths_(devices.size()),
        nonces_(ports.ranks()) {
    for (const auto& device : devices_) {
      slabs_.push_back(std::make_shared<Slab>((options_.receives + 1) * kSlot));
      regions_.push_back(std::make_shared<VerbsRegion>(device, *slabs_.back()));
    }
  }

  ProvenCables run();

 private:
  // What this rank says to all, and what each other says.
  std::vector<std::string> tell_all(const std::string& text) {
    std::vector<std::string> out(ports_.ranks(), text);
    return exchange_(out);
  }

  std::vector<Port> unproven(std::vector<Port> ports) const {
    std::erase_if(ports, [&](Port port) { return cabling_.contains(port); });
    return ports;
  }
  Cabling listed(size_t shift) const;
  bool try_listed(std::chrono::milliseconds patience);
  bool try_all(std::chrono::milliseconds patience);
  void round(const Cabling& partners, std::chrono::milliseconds patience);
  std::vector<Probe> make_probes(const Cabling& partners);
  void connect(std::vector<Probe>& probes, const Cabling& partners);
  void listen(Probe& probe);
  void speak(Probe& probe);
  void compare();
  bool contradicted() const;
  [[noreturn]] void refuse() const;

  const TrunkOptions& options_;
  const Ports& ports_;
  const size_t rank_;
  const std::vector<std::shared_ptr<VerbsDevice>>& devices_;
  const Exchange& exchange_;
  const Deadline deadline_;
  std::vector<DeviceDepth> depths_;
  std::vector<uint64_t> nonces_;
  std::vector<std::shared_ptr<Slab>> slabs_;
  std::vector<std::shared_ptr<VerbsRegion>> regions_;
  std::map<Port, std::set<Port>> heard_;           // by whom, whom; own ones first, then everybody's
  std::map<std::pair<Port, Port>, int> refusals_;  // errno of connecting one with another, everybody's
  Cabling cabling_;
  bool expired_ = false;  // some rank's deadline
};

ProvenCables Prover::run() {
  std::random_device random;
  nonces_[rank_] = (uint64_t{random()} << 32) | random();
  const auto said = tell_all(Encoder().put(nonces_[rank_]).take());
  for (size_t peer = 0; peer < ports_.ranks(); ++peer) {
    if (peer != rank_) nonces_[peer] = Decoder(said[peer]).get<uint64_t>();
  }
  for (std::chrono::milliseconds patience = kFirstPatience;; patience *= 2) {
    if (try_listed(patience)) return {cabling_, depths_};
    if (try_all(patience) && !contradicted()) return {cabling_, depths_};
    if (contradicted() || expired_) refuse();
    std::this_thread::sleep_for(patience);  // what devices refuse at once is not asked for again and again
  }
}

// As the lists have it: the k-th device of one rank with the (k + shift)-th of the other, of those not yet proven.
Cabling Prover::listed(size_t shift) const {
  Cabling partners;
  for (size_t a = 0; a < ports_.ranks(); ++a) {
    for (size_t b = a + 1; b < ports_.ranks(); ++b) {
      const auto here = unproven(ports_.between(a, b)), there = unproven(ports_.between(b, a));
      const size_t count = std::max(here.size(), there.size());
      for (size_t k = 0; k < here.size(); ++k) {
        const size_t other = (k + shift) % count;
        if (other >= there.size()) continue;
        partners[here[k]] = there[other];
        partners[there[other]] = here[k];
      }
    }
  }
  return partners;
}

// True: every cable is found.
bool Prover::try_listed(std::chrono::milliseconds patience) {
  size_t most = 1;
  for (size_t shift = 0; shift < most && !expired_; ++shift) {
    round(listed(shift), patience);
    if (unproven(ports_.all()).empty()) return !contradicted();
    if (shift > 0) continue;
    for (size_t a = 0; a < ports_.ranks(); ++a) {
      for (size_t b = 0; b < ports_.ranks(); ++b) most = std::max(most, unproven(ports_.between(a, b)).size());
    }
  }
  return false;
}

// Every device that is left with every other, as in a tournament.
bool Prover::try_all(std::chrono::milliseconds patience) {
  std::vector<Port> left = unproven(ports_.all());
  const size_t count = left.size() + left.size() % 2;  // with a place to sit out
  for (size_t turn = 0; turn + 1 < count && !expired_; ++turn) {
    Cabling partners;
    const auto pair = [&](size_t one, size_t other) {
      if (one >= left.size() || other >= left.size()) return;
      if (cabling_.contains(left[one]) || cabling_.contains(left[other])) return;
      partners[left[one]] = left[other];
      partners[left[other]] = left[one];
    };
    pair(count - 1, turn);
    for (size_t i = 1; i < count / 2; ++i) pair((turn + i) % (count - 1), (turn + count - 1 - i) % (count - 1));
    if (partners.empty()) continue;
    round(partners, patience);
  }
  return unproven(ports_.all()).empty();
}

void Prover::round(const Cabling& partners, std::chrono::milliseconds patience) {
  std::vector<Probe> probes = make_probes(partners);
  connect(probes, partners);
  const Deadline end = Deadline::after(patience);
  for (;;) {
    bool finished = true;
    for (Probe& probe : probes) {
      if (probe.finished()) continue;
      listen(probe);
      if (!probe.sending && Clock::now() >= probe.next) speak(probe);
      if (!probe.link->fault().empty()) fail(ErrorKind::system, "{}; unplug and plug it", probe.link->fault());
      finished = finished && probe.finished();
    }
    if (finished || end.expired()) break;
    std::this_thread::sleep_for(50us);
  }
  probes.clear();
  compare();
}

std::vector<Probe> Prover::make_probes(const Cabling& partners) {
  std::vector<Probe> probes;
  for (const auto& [self, partner] : partners) {
    if (self.rank != rank_) continue;
    Probe probe;
    probe.self = self;
    probe.partner = partner;
    probe.device = devices_[self.index];
    probe.memory = slabs_[self.index]->data();
    probe.link = std::make_shared<VerbsLink>(probe.device, regions_[self.index], options_.receives, options_.sends);
    probes.push_back(std::move(probe));
  }
  return probes;
}

void Prover::connect(std::vector<Probe>& probes, const Cabling& partners) {
  struct Number {
    uint32_t queue_pair = 0, first_packet = 0;
  };
  Encoder numbers;
  numbers.put(static_cast<uint32_t>(probes.size()));
  for (const Probe& probe : probes) {
    const VerbsAddress address = probe.link->address();
    numbers.put(static_cast<uint32_t>(probe.self.index)).put(address.queue_pair).put(address.first_packet);
  }
  const std::string own = numbers.take();
  auto said = tell_all(own);
  said[rank_] = own;
  std::map<Port, Number> known;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    Decoder decoder(said[rank]);
    for (uint32_t left = decoder.get<uint32_t>(); left > 0; --left) {
      const size_t index = decoder.get<uint32_t>();
      const uint32_t queue_pair = decoder.get<uint32_t>();
      known[{rank, index}] = {queue_pair, decoder.get<uint32_t>()};
    }
  }

  Encoder results;
  results.put(static_cast<uint32_t>(probes.size()));
  for (Probe& probe : probes) {
    const Number number = known[probe.partner];
    const int error = probe.link->connect({ports_[probe.partner].gid, number.queue_pair, number.first_packet});
    if (error == 0) {
      probe.receives = probe.link->post_receives(probe.memory, kSlot, options_.receives);
      depths_[probe.self.index] = {probe.receives, probe.link->sends()};
    }
    results.put(static_cast<uint32_t>(probe.self.index)).put(error);
  }
  // Nobody sends before all have posted their receives.
  const std::string outcome = results.take();
  said = tell_all(outcome);
  said[rank_] = outcome;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    Decoder decoder(said[rank]);
    for (uint32_t left = decoder.get<uint32_t>(); left > 0; --left) {
      const Port port{rank, decoder.get<uint32_t>()};
      const int error = decoder.get<int>();
      if (const auto partner = partners.find(port); partner != partners.end()) refusals_[*partner] = error;
    }
  }
  for (Probe& probe : probes) {
    probe.hopeless = refusals_[{probe.self, probe.partner}] != 0 || refusals_[{probe.partner, probe.self}] != 0;
  }
}

void Prover::listen(Probe& probe) {
  struct Polled {
    std::array<MessageCompletion, 16> completions;
    size_t count = 0;
  };
  const Polled polled = probe.device->calls()
                            .run("poll_cq",
                                 [link = probe.link] {
                                   Polled result;
                                   result.count = link->poll(result.completions);
                                   return result;
                                 })
                            .value;
  for (size_t i = 0; i < polled.count; ++i) {
    const MessageCompletion& each = polled.completions[i];
    if (each.kind == MessageCompletion::Kind::sent) {
      probe.sending = false;
      continue;
    }
    std::byte* const slot = probe.memory + each.id * kSlot;
    Word word;
    if (each.good && each.bytes == sizeof word) {
      std::memcpy(&word, slot, sizeof word);
      const Port from{word.rank, word.index};
      const bool valid = word.magic == Word::kMagic && word.checksum == word.sum() && word.rank < ports_.ranks() &&
                         word.index < ports_.of(word.rank).size() && word.nonce == nonces_[word.rank];
      if (valid) {
        const bool answer = word.heard_rank == probe.self.rank && word.heard_index == probe.self.index;
        if (!probe.heard || !answer) probe.next = Clock::now();
        probe.heard = from;
        probe.answered = probe.answered || answer;
        heard_[probe.self].insert(from);
      }
    }
    probe.device->calls().run("post_recv", [link = probe.link, slot, id = each.id] {
      link->post_receive(slot, kSlot, id);
      return 0;
    });
  }
}

void Prover::speak(Probe& probe) {
  Word word;
  word.nonce = nonces_[rank_];
  word.rank = static_cast<uint32_t>(probe.self.rank);
  word.index = static_cast<uint32_t>(probe.self.index);
  if (probe.heard) {
    word.heard_rank = static_cast<uint32_t>(probe.heard->rank);
    word.heard_index = static_cast<uint32_t>(probe.heard->index);
    ++probe.answers;
  }
  word.checksum = word.sum();
  std::memcpy(probe.outgoing(), &word, sizeof word);
  probe.sending =
      probe.device->calls()
          .run("post_send",
               [link = probe.link, message = probe.outgoing()] { return link->post_send(message, sizeof(Word), 0); })
          .value;
  probe.next = Clock::now() + kInterval;
}

// Tells all whom this rank's devices have heard. Two that have heard each other are the ends of one cable.
void Prover::compare() {
  Encoder encoder;
  encoder.put(static_cast<uint8_t>(deadline_.expired()));
  std::vector<std::pair<Port, Port>> own;
  for (const auto& [self, others] : heard_) {
    if (self.rank != rank_) continue;
    for (const Port other : others) own.emplace_back(self, other);
  }
  encoder.put(static_cast<uint32_t>(own.size()));
  for (const auto& [self, other] : own) {
    encoder.put(static_cast<uint32_t>(self.index));
    encoder.put(static_cast<uint32_t>(other.rank)).put(static_cast<uint32_t>(other.index));
  }
  expired_ = deadline_.expired();
  const auto said = tell_all(encoder.take());
  for (size_t rank = 0; rank < said.size(); ++rank) {
    if (rank == rank_) continue;
    Decoder decoder(said[rank]);
    expired_ = (decoder.get<uint8_t>() != 0) || expired_;
    for (uint32_t left = decoder.get<uint32_t>(); left > 0; --left) {
      const Port self{rank, decoder.get<uint32_t>()};
      const size_t other = decoder.get<uint32_t>();
      heard_[self].insert({other, decoder.get<uint32_t>()});
    }
  }
  for (const auto& [self, others] : heard_) {
    for (const Port other : others) {
      if (cabling_.contains(self) || cabling_.contains(other)) continue;
      if (const auto back = heard_.find(other); back == heard_.end() || !back->second.contains(self)) continue;
      cabling_[self] = other;
      cabling_[other] = self;
    }
  }
}

bool Prover::contradicted() const {
  return std::any_of(cabling_.begin(), cabling_.end(),
                     [&](const auto& each) { return ports_[each.first].peer != each.second.rank; });
}

void Prover::refuse() const {
  std::vector<std::string> faults;
  for (const auto& [port, other] : cabling_) {
    if (ports_[port].peer == other.rank) continue;
    faults.push_back(fmt::format("{} is listed for rank {}, but its cable leads to {}", ports_.text(port),
                                 ports_[port].peer, ports_.text(other)));
  }
  for (const auto& [port, other] : listed(0)) {
    if (port > other) continue;
    const auto refused = [&](Port one, Port two) {
      const auto found = refusals_.find({one, two});
      return found == refusals_.end() ? 0 : found->second;
    };
    const int error = refused(port, other) != 0 ? refused(port, other) : refused(other, port);
    faults.push_back(
        fmt::format("{} is listed with {}, but no cable joins them, nor leads from either to another device "
                    "of this job{}",
                    ports_.text(port), ports_.text(other),
                    error == 0 ? "" : fmt::format(" (connecting them: {})", std::strerror(error))));
  }
  constexpr size_t kShown = 4;
  const size_t more = faults.size() > kShown ? faults.size() - kShown : 0;
  faults.resize(faults.size() - more);
  fail(ErrorKind::mismatch, "cables: {}{}: correct the device matrix, or plug the cables as it says",
       fmt::join(faults, "; "), more == 0 ? "" : fmt::format("; and {} more", more));
}

}  // namespace

ProvenCables prove_cables(const TrunkOptions& options, const Ports& ports,
                          const std::vector<std::shared_ptr<VerbsDevice>>& devices, const Exchange& exchange) {
  return Prover(options, ports, devices, exchange).run();
}

}  // namespace trunkline

#include "comm/frame_channel.h"

#include <algorithm>
#include <thread>

#include "base/fail.h"
#include "comm/copy.h"

namespace trunkline {
namespace {

constexpr size_t kScatter = static_cast<size_t>(Part::scatter);

constexpr size_t kPage = 4096;

FrameOperation frame_operation(const Operation& operation) {
  FrameOperation result;
  result.number = operation.number;
  result.count = operation.count;
  result.kind = static_cast<uint8_t>(operation.kind);
  result.dtype = static_cast<uint8_t>(operation.dtype);
  result.reduction = static_cast<uint8_t>(operation.reduction);
  result.algorithm = static_cast<uint8_t>(operation.algorithm);
  result.root = operation.root;
  result.group = operation.group;
  result.pairwise = operation.pairwise();
  return result;
}

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

FrameChannel::Layout FrameChannel::layout(size_t frame_bytes, const std::vector<size_t>& links_by_peer) {
  const size_t most = std::max<size_t>(1, *std::max_element(links_by_peer.begin(), links_by_peer.end()));
  Layout layout{};
  layout.credit_bytes = round_up(max_credit_bytes(most), 64);
  layout.slot_bytes = round_up(std::max(kFrameHeaderBytes + frame_bytes, layout.credit_bytes), kPage);
  layout.pools = links_by_peer.size() + 1;
  layout.slots_per_pool = 32 + 32 * most;  // all that the cables may hold at a time, and some to stage meanwhile
  for (const size_t links : links_by_peer) layout.links += links;
  return layout;
}

FrameChannel::FrameChannel(size_t rank, LaneTrunks lane, const Layout& layout, Watch& watch,
                           std::shared_ptr<Keeper> keeper, std::shared_ptr<CableLog> log, const Options& options)
    : rank_(rank),
      layout_(layout),
      options_(options),
      watch_(watch),
      keeper_(std::move(keeper)),
      log_(std::move(log)),
      slab_(std::move(lane.slab)),
      send_slots_(slab_.data()),
      slots_(layout.pools, layout.slots_per_pool),
      trunks_(lane.trunks.size()) {
  std::byte* credits = send_slots_ + slots_.count() * layout.slot_bytes;
  for (size_t peer = 0; peer < trunks_.size(); ++peer) {
    std::vector<TrunkLink>& links = lane.trunks[peer];
    if (links.empty()) continue;
    FrameProtocol::Options protocol;
    protocol.generation = options.generation;
    protocol.frame_bytes = options.frame_bytes;
    protocol.checksum = options.checksum;
    protocol.slots = slots_.count();
    const size_t cables = links.size() - (options.spare_link ? 1 : 0);
    protocol.home = cables > 0 ? options.lane % cables : 0;
    protocol.credit_reserve = kCreditReserve;
    protocol.deadline = watch.silence();
    for (size_t i = 0; i < links.size(); ++i) {
      protocol.links.push_back({links[i].sends, links[i].receives, links[i].peer_receives, i >= cables});
    }
    size_t receives = FrameSet::kWindow;  // how far apart frames can be that have come and were not collected
    for (const TrunkLink& link : links) receives += link.receives;
    held_ = std::max(held_, receives);
    const size_t count = links.size();
    trunks_[peer] =
        std::make_unique<FrameTrunk>(watch.who(peer), std::move(links), protocol,
                                     FrameTrunk::Shared{layout.slot_bytes, send_slots_, &slots_, &current_, log_.get()},
                                     credits, layout.credit_bytes);
    credits += count * kCreditReserve * layout.credit_bytes;
  }
  keeper_->add(*this);
}

// --- what an operation gives and expects

void FrameChannel::open(const Operation& operation, const Team& team) {
  while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  operation_ = operation;
  peers_operation_ = as_peers_call(operation, static_cast<int>(team.place));
  team_ = &team;
  started_ = false;
  stores_ = stores_for(operation.bytes());
  peers_.resize(team.ranks.size());
  for (size_t place = 0; place < peers_.size(); ++place) {
    Peer& peer = peers_[place];
    const bool active = place != team.place && (!operation.pairwise() || static_cast<size_t>(operation.root) == place);
    peer.trunk = active ? trunks_[team.ranks[place]].get() : nullptr;
    peer.heard = false;
    peer.gives = peer.said = peer.given = {};
    peer.in = {};
  }
  for (Outgoing& each : outgoing_) each.size = each.staged = 0;  // their vectors keep their memory
  outgoing_count_ = 0;
  collected_.assign(peers_.size(), nullptr);
}

void FrameChannel::announce(size_t peer, Part part, size_t bytes) {
  uint64_t& gives = peers_[peer].gives[static_cast<size_t>(part)];
  gives = std::max<uint64_t>(gives, bytes);
}

void FrameChannel::send(std::span<const size_t> peers, Part part, ConstBytes bytes) {
  if (bytes.empty() || peers.empty()) return;
  if (frame_slot_ && bytes.data() == slot_at(*frame_slot_) + kFrameHeaderBytes) {
    const FrameHeader header = header_for(peers, part, static_cast<uint32_t>(bytes.size()));
    offer(peers, *std::exchange(frame_slot_, std::nullopt), header, std::nullopt);
    return;
  }
  for (Outgoing& each : outgoing()) {
    const bool same = each.part == part && std::equal(each.peers.begin(), each.peers.end(), peers.begin(), peers.end());
    if (!same || each.base + each.size != bytes.data()) continue;
    each.size += bytes.size();
    if (!started_) declare(peers, part, bytes.size());
    return;
  }
  if (outgoing_count_ == outgoing_.size()) outgoing_.emplace_back();
  Outgoing& next = outgoing_[outgoing_count_++];
  next.peers.assign(peers.begin(), peers.end());
  next.part = part;
  next.base = bytes.data();
  next.size = bytes.size();
  next.staged = 0;
  if (!started_) declare(peers, part, bytes.size());
}

// Before the start, what is sent is what will be sent, unless more was announced.
void FrameChannel::declare(std::span<const size_t> peers, Part part, size_t bytes) {
  for (const size_t place : peers) {
    Peer& peer = peers_[place];
    peer.said[static_cast<size_t>(part)] += bytes;
    announce(place, part, peer.said[static_cast<size_t>(part)]);
  }
}

void FrameChannel::receive(size_t peer, Part part, Bytes into) {
  peers_[peer].in[static_cast<size_t>(part)] = {into.data(), into.size(), {}};
}

void FrameChannel::stage(size_t peer, size_t bytes) {
  peers_[peer].in[kScatter] = {nullptr, bytes, {}};
  if (bytes > 0 && peers_[peer].held.empty()) peers_[peer].held.resize(held_);
}

// The peers' frames are announced with their sizes, so an operation starts when all of them are known.
void FrameChannel::start() {
  if (std::exchange(started_, true)) return;
  due_ = true;
  const FrameTime time = now();
  const FrameOperation own = frame_operation(operation_), theirs = frame_operation(peers_operation_);
  for (Peer& peer : peers_) {
    if (peer.trunk == nullptr) continue;
    std::array<uint64_t, kFramePhases> gives{}, gets{};
    for (size_t part = 0; part < kParts; ++part) {
      gives[part] = peer.gives[part];
      gets[part] = peer.in[part].size;
    }
    FrameProtocol& protocol = peer.trunk->protocol();
    if (!protocol.finished()) fail(ErrorKind::peer, "an operation was begun before the last had ended");
    protocol.begin(own, theirs, gives, gets, time);
  }
}

std::byte* FrameChannel::frame_for(std::span<const size_t> peers, Part part, size_t bytes) {
  start();
  const size_t pool = pool_for(peers, part);
  move_until([&] {
    const bool before = std::ranges::all_of(
        outgoing(), [&](const Outgoing& each) { return each.part != part || each.staged == each.size; });
    return before && slots_.has_free(pool) && can_offer(peers, part);
  });
  if (bytes > options_.frame_bytes) fail(ErrorKind::input, "a frame of {} bytes", bytes);
  frame_slot_ = slots_.take(pool, peers.size());
  return slot_at(*frame_slot_) + kFrameHeaderBytes;
}

std::span<const std::byte* const> FrameChannel::collect(size_t offset, const std::byte* own) {
  start();
  put_away_collected();
  const size_t frame = offset / options_.frame_bytes;
  move_until([&] {
    return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
      return !expects_staged(peer, offset) || peer.held[frame % held_].has_value();
    });
  });
  for (size_t place = 0; place < peers_.size(); ++place) {
    const Peer& peer = peers_[place];
    if (place == team_->place) {
      collected_[place] = own;
    } else {
      collected_[place] = expects_staged(peer, offset) ? peer.trunk->payload(*peer.held[frame % held_]) : nullptr;
    }
  }
  collected_frame_ = frame;
  return collected_;
}

bool FrameChannel::expects_staged(const Peer& peer, size_t offset) const {
  const Incoming& in = peer.in[kScatter];
  return peer.trunk != nullptr && in.base == nullptr && offset < in.size;
}

void FrameChannel::put_away_collected() {
  if (!collected_frame_) return;
  const size_t place = *std::exchange(collected_frame_, std::nullopt) % held_;
  due_ = true;
  const FrameTime time = now();
  for (Peer& peer : peers_) {
    if (peer.trunk == nullptr || peer.held.empty() || !peer.held[place]) continue;
    peer.trunk->put_away(*peer.held[place], time);
    peer.held[place].reset();
  }
}

void FrameChannel::await_sent(Part part, size_t bytes) {
  start();
  move_until([&] {
    return std::ranges::all_of(outgoing(), [&](const Outgoing& each) {
      return each.part != part || each.staged >= std::min(bytes, each.size);
    });
  });
}

void FrameChannel::await_received(size_t peer, Part part, size_t bytes) {
  start();
  const Incoming& in = peers_[peer].in[static_cast<size_t>(part)];
  move_until([&] { return in.come.base() * options_.frame_bytes >= std::min(bytes, in.size); });
}

void FrameChannel::close() {
  start();
  put_away_collected();
  move_until([&] {
    const bool staged = std::ranges::all_of(outgoing(), [](const Outgoing& each) { return each.staged == each.size; });
    return staged && std::all_of(peers_.begin(), peers_.end(), [](const Peer& peer) {
             return peer.trunk == nullptr || (peer.trunk->protocol().finished() && peer.trunk->protocol().all_posted());
           });
  });
  // Nobody may call here for some time: what could wait for a while is told at once.
  for (const Peer& peer : peers_) {
    if (peer.trunk == nullptr) continue;
    peer.trunk->protocol().flush();
    if (peer.trunk->look_at() == FrameTime::min()) peer.trunk->post(now());
  }
  busy_.store(false, std::memory_order_release);
}

// --- moving frames

template <typename Done>
void FrameChannel::move_until(Done done) {
  Watch::Wait wait;
  FrameTime moved_at = now(), data_at = moved_at;
  while (!done()) {
    const Stopwatch::Mark before = stopwatch_.mark();
    FrameTime time;
    const Moved moved = move_once(time);
    if (moved == Moved::data) {
      wait = {};
      data_at = time;
      watch_.advance();
    } else {
      watch_.check();
      if (time - data_at >= std::chrono::milliseconds(watch_.slice_ms())) {
        still_waiting(wait, time - data_at, time);
        data_at = time;
      }
    }
    if (moved != Moved::nothing) {
      moved_at = time;
    } else {
      stopwatch_.was_idle_since(before);
      pause(time - moved_at);
    }
  }
}

// Looks after everything once. `time`: when it did.
FrameChannel::Moved FrameChannel::move_once(FrameTime& time) {
  bool data = stage_some();
  time = now();
  find_out_if_stopped(time);
  bool moved = data;
  for (Peer& peer : peers_) {
    if (peer.trunk == nullptr) continue;
    moved = peer.trunk->poll(time) || moved;
    data = deliver(peer, time) || data;
  }
  moved = moved || data;
  // With nothing new, nothing is to be posted before the protocols say so.
  if (moved || due_ || time >= look_at_) {
    due_ = false;
    look_at_ = FrameTime::max();
    for (size_t place = 0; place < peers_.size(); ++place) {
      Peer& peer = peers_[place];
      if (peer.trunk == nullptr) continue;
      moved = peer.trunk->post(time) || moved;
      const FrameProtocol& protocol = peer.trunk->protocol();
      if (const auto& fault = protocol.fault()) fail_with(team_->ranks[place], *fault);
      look_at_ = std::min(look_at_, peer.trunk->look_at());
      if (peer.heard || !protocol.peer_has_begun()) continue;
      peer.heard = true;
      watch_.heard(team_->ranks[place], peers_operation_);
    }
  }
  if (++looks_ % 64 == 0) look_at_others(time);
  return data ? Moved::data : moved ? Moved::credits : Moved::nothing;
}

bool FrameChannel::deliver(Peer& peer, FrameTime time) {
  bool any = false;
  while (const auto delivery = peer.trunk->protocol().next_delivery()) {
    any = true;
    Incoming& in = peer.in[delivery->phase];
    const size_t frame = delivery->offset / options_.frame_bytes;
    if (in.base == nullptr) {
      peer.held[frame % held_] = *delivery;
      continue;
    }
    {
      const auto span = stopwatch_.in(Activity::copy);
      copy_bytes(in.base + delivery->offset, peer.trunk->payload(*delivery), delivery->length, stores_);
    }
    in.come.insert(frame);
    peer.trunk->put_away(*delivery, time);
  }
  return any;
}

// One frame of each run of bytes, the same number for all peers before the next.
bool FrameChannel::stage_some() {
  bool any = false;
  for (Outgoing& each : outgoing()) {
    if (each.staged < each.size) any = stage_frame(each) || any;
  }
  return any;
}

bool FrameChannel::stage_frame(Outgoing& outgoing) {
  const size_t pool = pool_for(outgoing.peers, outgoing.part);
  if (!slots_.has_free(pool) || !can_offer(outgoing.peers, outgoing.part)) return false;
  const auto length = static_cast<uint32_t>(std::min(options_.frame_bytes, outgoing.size - outgoing.staged));
  const uint32_t slot = slots_.take(pool, outgoing.peers.size());
  std::byte* const payload = slot_at(slot) + kFrameHeaderBytes;
  const FrameHeader header = header_for(outgoing.peers, outgoing.part, length);
  std::optional<uint32_t> checksum;
  {
    const auto span = stopwatch_.in(Activity::copy);
    const std::byte* const from = outgoing.base + outgoing.staged;
    if (options_.checksum) {
      checksum = copy_with_checksum(payload, from, length, checksum_seed(header));
    } else {
      copy_bytes(payload, from, length, Stores::cached);
    }
  }
  outgoing.staged += length;
  offer(outgoing.peers, slot, header, checksum);
  return true;
}

bool FrameChannel::can_offer(std::span<const size_t> peers, Part part) const {
  return std::all_of(peers.begin(), peers.end(), [&](size_t place) {
    return peers_[place].trunk->protocol().has_room(static_cast<uint8_t>(part));
  });
}

// Contributions have a pool for each peer, and one, this rank's own, for those that go to several.
size_t FrameChannel::pool_for(std::span<const size_t> peers, Part part) const {
  if (part == Part::gather) return layout_.pools - 1;
  return peers.size() == 1 ? team_->ranks[peers[0]] : rank_;
}

FrameHeader FrameChannel::header_for(std::span<const size_t> peers, Part part, uint32_t length) const {
  const Peer& peer = peers_[peers[0]];
  FrameHeader header;
  header.generation = options_.generation;
  header.phase = static_cast<uint8_t>(part);
  header.set_operation(frame_operation(operation_));
  header.offset = peer.given[static_cast<size_t>(part)];
  header.length = length;
  header.stream_bytes = peer.gives[static_cast<size_t>(part)];
  return header;
}

void FrameChannel::offer(std::span<const size_t> peers, uint32_t slot, const FrameHeader& header,
                         std::optional<uint32_t> checksum) {
  const std::span<std::byte> frame(slot_at(slot), kFrameHeaderBytes + header.length);
  if (checksum) {
    seal_frame(frame, header, *checksum);
  } else {
    const auto span = stopwatch_.in(Activity::checksum);
    seal_frame(frame, header, options_.checksum);
  }
  due_ = true;
  for (const size_t place : peers) {
    peers_[place].trunk->protocol().offer(header.phase, header.offset, header.length, slot);
    peers_[place].given[header.phase] += header.length;
  }
}

}  // namespace trunkline

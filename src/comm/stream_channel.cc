#include "comm/stream_channel.h"

#include <algorithm>
#include <cstring>

namespace trunkline {
namespace {

constexpr uint32_t kOpeningMagic = 0x4c4b5254;  // "TRKL"
constexpr size_t kScatter = static_cast<size_t>(Part::scatter);

}  // namespace

StreamChannel::StreamChannel(size_t rank, std::vector<TcpLink> links, Watch& watch, const Options& options)
    : rank_(rank), options_(options), watch_(watch), peers_(links.size()) {
  static_assert(sizeof(Opening) == 32 && sizeof(FrameHeader) == 16, "the layout on the wire");
  for (size_t i = 0; i < links.size(); ++i) peers_[i].link = std::move(links[i]);
}

// --- what an operation gives and expects

void StreamChannel::open(const Operation& operation, const Team& team) {
  operation_ = operation;
  team_ = team;
  collected_.assign(team.ranks.size(), nullptr);
  for (Peer& peer : peers_) peer.active = false;
  for (size_t place = 0; place < team.ranks.size(); ++place) {
    Peer& peer = at(place);
    peer.active = place != team.place && (!operation.pairwise() || static_cast<size_t>(operation.root) == place);
    if (!peer.active) continue;
    peer.out = {};
    peer.in = {};
    peer.opening_due = true;
    peer.opened = false;
    peer.collected = 0;
    peer.can_read = peer.can_write = true;
  }
}

void StreamChannel::send(std::span<const size_t> peers, Part part, ConstBytes bytes) {
  for (const size_t peer : peers) {
    Outgoing& out = at(peer).out[static_cast<size_t>(part)];
    if (out.size == 0) out.base = bytes.data();
    out.size += bytes.size();
  }
}

void StreamChannel::receive(size_t peer, Part part, Bytes into) {
  at(peer).in[static_cast<size_t>(part)] = {into.data(), into.size(), 0};
}

void StreamChannel::stage(size_t peer, size_t bytes) {
  at(peer).in[kScatter] = {nullptr, bytes, 0};
  if (bytes > 0 && at(peer).staging.empty()) at(peer).staging.resize(staging_bytes());
}

std::span<const std::byte* const> StreamChannel::collect(size_t offset, const std::byte* own) {
  for (size_t place = 0; place < team_.ranks.size(); ++place) {
    at(place).collected = offset;
    collected_[place] = place == team_.place ? own : at(place).staging.data() + offset % staging_bytes();
  }
  move_until([&] {
    return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
      const Incoming& in = peer.in[kScatter];
      return !peer.active || in.received >= std::min(offset + options_.frame_bytes, in.size);
    });
  });
  return collected_;
}

void StreamChannel::await_sent(Part part, size_t bytes) {
  move_until([&] {
    return std::all_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
      return !peer.active || peer.out[static_cast<size_t>(part)].sent >= bytes;
    });
  });
}

void StreamChannel::await_received(size_t peer, Part part, size_t bytes) {
  move_until([&] { return at(peer).in[static_cast<size_t>(part)].received >= bytes; });
}

void StreamChannel::close() {
  move_until([&] {
    return std::all_of(peers_.begin(), peers_.end(),
                       [](const Peer& peer) { return !peer.active || (peer.all_sent() && peer.all_received()); });
  });
}

// --- moving bytes

template <typename Done>
void StreamChannel::move_until(Done done) {
  Watch::Wait wait;
  while (!done()) {
    if (move_once()) {
      wait = {};
    } else {
      sleep(wait);
    }
  }
}

// One write and one read for each rank that may take them; whether anything moved.
bool StreamChannel::move_once() {
  bool moved = false;
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].active) continue;
    try {
      moved = write_to(i) || moved;
      moved = read_from(i) || moved;
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::peer) throw;
      watch_.link_lost(i, error.what());
    }
  }
  if (moved) watch_.advance();
  return moved;
}

bool StreamChannel::write_to(size_t index) {
  Peer& peer = peers_[index];
  Sending& sending = peer.sending;
  if (!peer.can_write || (sending.done == sending.size() && !next_frame(peer))) return false;

  const size_t prefix_done = std::min(sending.done, sending.prefix_size);
  const size_t payload_done = sending.done - prefix_done;
  const std::array<ConstBytes, 2> parts{
      ConstBytes(sending.prefix).subspan(prefix_done, sending.prefix_size - prefix_done),
      ConstBytes(sending.payload + payload_done, sending.payload_size - payload_done)};
  const size_t count = [&] {
    const auto span = stopwatch_.in(Activity::verbs);
    return peer.link.write(parts);
  }();
  const size_t payload = count - std::min(count, parts[0].size());
  peer.can_write = count == parts[0].size() + parts[1].size();
  sending.done += count;
  peer.out[static_cast<size_t>(sending.part)].sent += payload;
  peer.bytes_sent.fetch_add(payload, std::memory_order_relaxed);
  return count > 0;
}

// Cuts the next frame; results go before contributions, since other ranks wait for them and they are in cache.
bool StreamChannel::next_frame(Peer& peer) {
  Sending& sending = peer.sending;
  sending = {};
  const auto append = [&](const auto& header) {
    std::memcpy(sending.prefix.data() + sending.prefix_size, &header, sizeof header);
    sending.prefix_size += sizeof header;
  };
  if (peer.opening_due) {
    append(Opening{kOpeningMagic, operation_.kind, operation_.dtype, operation_.reduction, operation_.algorithm,
                   operation_.number, operation_.count, operation_.root, operation_.group});
    peer.opening_due = false;
  }
  for (const Part part : {Part::gather, Part::scatter}) {
    Outgoing& out = peer.out[static_cast<size_t>(part)];
    if (out.framed == out.size) continue;
    sending.part = part;
    sending.payload = out.base + out.framed;
    sending.payload_size = std::min(options_.frame_bytes, out.size - out.framed);
    append(FrameHeader{out.framed, static_cast<uint32_t>(sending.payload_size), part, {}});
    out.framed += sending.payload_size;
    break;
  }
  return sending.size() > 0;
}

bool StreamChannel::read_from(size_t index) {
  Peer& peer = peers_[index];
  digest(index);
  if (!peer.can_read || !peer.wants_read(staging_bytes())) return false;

  // The payload goes straight to its place, and the header behind it into `ahead`: one read a frame.
  const std::span<std::byte> place = peer.next_place(staging_bytes());
  std::span<std::byte> ahead(peer.ahead);
  if (place.empty()) {
    std::memmove(peer.ahead.data(), peer.ahead.data() + peer.ahead_begin, peer.ahead_end - peer.ahead_begin);
    peer.ahead_end -= peer.ahead_begin;
    ahead = ahead.subspan(peer.ahead_end);
  } else {
    peer.ahead_end = 0;
    ahead = ahead.first(place.size() == peer.frame_left ? sizeof(FrameHeader) : 0);
  }
  peer.ahead_begin = 0;
  const std::array<Bytes, 2> parts{place, ahead};
  const size_t count = [&] {
    const auto span = stopwatch_.in(Activity::verbs);
    return peer.link.read(parts);
  }();
  peer.can_read = count == place.size() + ahead.size();

  const size_t placed = std::min(count, place.size());
  if (placed > 0) peer.took(placed);
  peer.ahead_end += count - placed;
  digest(index);
  return count > 0;
}

// Takes apart what was read ahead, as far as it belongs to this operation.
void StreamChannel::digest(size_t index) {
  Peer& peer = peers_[index];
  for (;;) {
    if (peer.frame && peer.frame_left == 0) peer.frame.reset();
    const size_t available = peer.ahead_end - peer.ahead_begin;
    if (peer.frame) {
      const std::span<std::byte> place = peer.next_place(staging_bytes());
      const size_t count = std::min(available, place.size());
      if (count == 0) return;
      const auto span = stopwatch_.in(Activity::copy);
      std::memcpy(place.data(), peer.ahead.data() + peer.ahead_begin, count);
      peer.ahead_begin += count;
      peer.took(count);
    } else if (!peer.opened) {
      if (available < sizeof(Opening)) return;
      take_opening(index);
    } else {
      if (peer.all_received() || available < sizeof(FrameHeader)) return;
      take_header(index);
    }
  }
}

void StreamChannel::take_opening(size_t index) {
  Peer& peer = peers_[index];
  Opening opening;
  std::memcpy(&opening, peer.ahead.data() + peer.ahead_begin, sizeof opening);
  peer.ahead_begin += sizeof opening;
  if (opening.magic != kOpeningMagic) fail(ErrorKind::peer, "bytes that are no operation");
  const Operation theirs{opening.number,    opening.count,     opening.kind, opening.dtype,
                         opening.reduction, opening.algorithm, opening.root, opening.group};
  watch_.heard(index, theirs);
  const auto place = std::find(team_.ranks.begin(), team_.ranks.end(), index) - team_.ranks.begin();
  if (!matches(operation_, static_cast<int>(team_.place), theirs, static_cast<int>(place))) {
    const bool first = rank_ < index;
    fail(ErrorKind::mismatch, "{}",
         disagreement(watch_.who(first ? rank_ : index), first ? operation_ : theirs, watch_.who(first ? index : rank_),
                      first ? theirs : operation_));
  }
  peer.opened = true;
}

void StreamChannel::take_header(size_t index) {
  Peer& peer = peers_[index];
  FrameHeader header;
  std::memcpy(&header, peer.ahead.data() + peer.ahead_begin, sizeof header);
  peer.ahead_begin += sizeof header;
  const Incoming* in = static_cast<size_t>(header.part) < kParts ? &peer.in[static_cast<size_t>(header.part)] : nullptr;
  if (in == nullptr || header.offset != in->received || header.length == 0 || header.length > in->size - in->received) {
    fail(ErrorKind::peer, "a frame that does not belong to the operation");
  }
  peer.frame = header;
  peer.frame_left = header.length;
}

// --- one rank's state

bool StreamChannel::Peer::all_sent() const {
  return !opening_due && sending.done == sending.size() &&
         std::all_of(out.begin(), out.end(), [](const Outgoing& each) { return each.framed == each.size; });
}

bool StreamChannel::Peer::all_received() const {
  return opened && std::all_of(in.begin(), in.end(), [](const Incoming& each) { return each.received == each.size; });
}

bool StreamChannel::Peer::wants_read(size_t staging_bytes) const {
  if (!active || all_received()) return false;
  return !frame || room(staging_bytes) > 0;
}

// How many bytes of the current frame's part can be taken now.
size_t StreamChannel::Peer::room(size_t staging_bytes) const {
  const Incoming& part = in[static_cast<size_t>(frame->part)];
  return part.base != nullptr ? part.size - part.received : collected + staging_bytes - part.received;
}

// So many bytes of the current frame are in their place.
void StreamChannel::Peer::took(size_t bytes) {
  in[static_cast<size_t>(frame->part)].received += bytes;
  frame_left -= bytes;
  bytes_received.fetch_add(bytes, std::memory_order_relaxed);
}

// Where the next bytes of the current frame go: nowhere without a frame, or without room.
std::span<std::byte> StreamChannel::Peer::next_place(size_t staging_bytes) {
  if (!frame) return {};
  const Incoming& part = in[static_cast<size_t>(frame->part)];
  if (part.base != nullptr) return {part.base + part.received, frame_left};
  const size_t position = part.received % staging_bytes;
  return {staging.data() + position, std::min({frame_left, room(staging_bytes), staging_bytes - position})};
}

// --- waiting

// A brief spin where the cores allow it, then sleep until a link is ready or the job has ended.
void StreamChannel::sleep(Watch::Wait& wait) {
  const auto span = stopwatch_.in(Activity::idle);
  const auto start = Clock::now();
  while (Clock::now() - start < options_.spin) {
    for (Peer& peer : peers_) peer.can_read = peer.can_write = true;
    if (move_once()) return;
  }
  interests_.clear();
  awaited_.clear();
  for (size_t i = 0; i < peers_.size(); ++i) {
    const Peer& peer = peers_[i];
    if (!peer.active || (peer.all_sent() && peer.all_received())) continue;
    awaited_.push_back(i);
    interests_.push_back({&peer.link, peer.wants_read(staging_bytes()), !peer.all_sent()});
  }
  const auto slept_from = Clock::now();
  const Wake wake = wait_ready(interests_, watch_.interrupt(), watch_.slice_ms());
  if (wake == Wake::interrupted) watch_.check();
  for (size_t i = 0; i < awaited_.size(); ++i) {
    peers_[awaited_[i]].can_read = interests_[i].read;
    peers_[awaited_[i]].can_write = interests_[i].write;
  }
  if (wake == Wake::timeout) watch_.still_waiting(wait, Clock::now() - slept_from, awaited_);
}

void StreamChannel::add_traffic(std::vector<CableTraffic>& cables) const {
  for (size_t i = 0; i < peers_.size(); ++i) {
    if (i == rank_) continue;
    trunkline::add_traffic(cables, {.id = "tcp",
                                    .peer = static_cast<int>(i),
                                    .bytes_sent = peers_[i].bytes_sent.load(std::memory_order_relaxed),
                                    .bytes_received = peers_[i].bytes_received.load(std::memory_order_relaxed)});
  }
}

}  // namespace trunkline

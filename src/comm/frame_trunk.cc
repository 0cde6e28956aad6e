#include "comm/frame_trunk.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "comm/channel.h"

namespace trunkline {

FrameTrunk::FrameTrunk(std::string peer, std::vector<TrunkLink> links, const FrameProtocol::Options& options,
                       const Shared& shared, std::byte* credit_slots, size_t credit_slot_bytes)
    : peer_(std::move(peer)),
      shared_(shared),
      credit_slot_bytes_(credit_slot_bytes),
      checksum_(options.checksum),
      credit_slots_(credit_slots),
      credit_reserve_(options.credit_reserve),
      protocol_(options),
      health_(links.size(), options.times.dead),
      paths_(links.size()) {
  for (size_t i = 0; i < links.size(); ++i) {
    paths_[i].end = std::move(links[i]);
    for (size_t slot = 0; slot < credit_reserve_; ++slot) {
      paths_[i].free_credits.push_back(static_cast<uint32_t>(i * credit_reserve_ + slot));
    }
  }
}

FrameTrunk::~FrameTrunk() {
  const FrameProtocol::Counts& counts = protocol_.counts();
  spdlog::debug("frames with {}: {} damaged, {} lost, {} sent again, {} came twice, {} refused; {} credit messages",
                peer_, counts.damaged, counts.lost, protocol_.repeats(), counts.duplicates, counts.refused,
                counts.credits);
}

bool FrameTrunk::poll(FrameTime now) {
  bool any = false;
  std::array<MessageCompletion, 16> completions;
  for (size_t i = 0; i < paths_.size(); ++i) {
    size_t count;
    {
      const auto span = (*shared_.stopwatch)->in(Activity::verbs);
      count = paths_[i].end.link->poll(completions);
    }
    any = any || count > 0;
    for (size_t c = 0; c < count; ++c) {
      if (completions[c].kind == MessageCompletion::Kind::received) {
        arrived(i, completions[c], now);
      } else {
        sent(i, now);
      }
    }
  }
  while (const auto slot = protocol_.released()) shared_.slots->release(*slot);
  return any;
}

void FrameTrunk::arrived(size_t link, const MessageCompletion& completion, FrameTime now) {
  const auto slot = static_cast<uint32_t>(completion.id);
  Frame frame;  // damaged, unless the receive was good
  if (completion.good) {
    const auto span = (*shared_.stopwatch)->in(Activity::checksum);
    frame = read_frame({receive_slot(link, slot), completion.bytes}, checksum_);
  }
  if (protocol_.arrived(link, slot, frame, now)) {
    paths_[link].bytes_received += frame.header.length;
  } else {
    repost(link, slot, now);
  }
}

void FrameTrunk::repost(size_t link, uint32_t slot, FrameTime now) {
  {
    const auto span = (*shared_.stopwatch)->in(Activity::verbs);
    paths_[link].end.link->post_receive(receive_slot(link, slot), static_cast<uint32_t>(shared_.slot_bytes), slot);
  }
  protocol_.reposted(link, now);
}

bool FrameTrunk::post(FrameTime now) {
  protocol_.advance(now);
  bool any = false;
  for (size_t i = 0; i < paths_.size(); ++i) any = flush(i, now) || any;
  while (const auto post = protocol_.next_post(now)) {
    paths_[post->link].to_post.push_back(prepare(*post));
    any = flush(post->link, now) || any;
  }
  tell_health(now);
  return any;
}

const std::string* FrameTrunk::out_of_use() const {
  const bool works =
      std::any_of(paths_.begin(), paths_.end(), [](const Path& path) { return path.end.link->fault().empty(); });
  return works || paths_.empty() ? nullptr : &paths_.front().end.link->fault();
}

FrameTime FrameTrunk::look_at() const {
  const bool refused =
      std::any_of(paths_.begin(), paths_.end(), [](const Path& path) { return !path.to_post.empty(); });
  return refused ? FrameTime::min() : protocol_.wake_at();
}

FrameTrunk::Message FrameTrunk::prepare(const FrameProtocol::Post& post) {
  Path& path = paths_[post.link];
  if (!post.credit) {
    path.bytes_sent += post.bytes - kFrameHeaderBytes;
    return {shared_.send_slots + post.slot * shared_.slot_bytes, post.bytes};
  }
  const uint32_t slot = path.free_credits.back();
  path.free_credits.pop_back();
  path.posted_credits.push_back(slot);
  std::byte* const at = credit_slots_ + slot * credit_slot_bytes_;
  return {at, static_cast<uint32_t>(protocol_.write_credit(post, {at, credit_slot_bytes_}))};
}

// Messages of a link keep their order, since the protocol counts them. A link that is out of use swallows them: the
// protocol finds out, and sends them another way.
bool FrameTrunk::flush(size_t link, FrameTime now) {
  Path& path = paths_[link];
  if (path.to_post.empty()) return false;
  bool any = false;
  const auto span = (*shared_.stopwatch)->in(Activity::verbs);
  for (; !path.to_post.empty(); path.to_post.pop_front()) {
    const Message& message = path.to_post.front();
    if (!path.end.link->post_send(message.at, message.bytes, 0)) {
      if (path.end.link->fault().empty()) break;
      sent(link, now);
    }
    any = true;
  }
  return any;
}

// The oldest message of a link has been read from its slot.
void FrameTrunk::sent(size_t link, FrameTime now) {
  Path& path = paths_[link];
  if (!protocol_.completed(link, now)) return;
  path.free_credits.push_back(path.posted_credits.front());
  path.posted_credits.pop_front();
}

bool FrameTrunk::works_but(size_t link) const {
  for (size_t i = 0; i < paths_.size(); ++i) {
    if (i != link && !protocol_.link(i).suspended() && paths_[i].end.link->fault().empty()) return true;
  }
  return false;
}

void FrameTrunk::tell_health(FrameTime now) {
  for (size_t i = 0; i < paths_.size(); ++i) {
    paths_[i].suspended.store(protocol_.link(i).suspended(), std::memory_order_relaxed);
  }
  health_.look(
      now, protocol_.told_at(), [this](size_t link) { return protocol_.link(link).suspended(); },
      [this](TrunkHealth::News news, size_t link) {
        const std::string cable = fmt::format("cable {} to {}", paths_[link].end.link->name(), peer_);
        switch (news) {
          case TrunkHealth::News::cable_lost: return shared_.log->lost(cable, works_but(link));
          case TrunkHealth::News::cable_works: return shared_.log->works_again(cable);
          case TrunkHealth::News::rank_silent: return shared_.log->silent(peer_, cables_text());
          case TrunkHealth::News::rank_heard: return shared_.log->heard_again(peer_);
        }
      });
}

std::string FrameTrunk::cables_text() const {
  std::vector<std::string> names;
  for (const Path& path : paths_) names.push_back(path.end.link->name());
  return fmt::format("{}", fmt::join(names, ", "));
}

void FrameTrunk::add_traffic(int peer, std::vector<CableTraffic>& cables) const {
  for (const Path& path : paths_) {
    trunkline::add_traffic(cables, {path.end.link->name(), peer, path.bytes_sent.load(), path.bytes_received.load(),
                                    !path.suspended.load()});
  }
}

}  // namespace trunkline

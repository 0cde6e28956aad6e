#include "comm/watch.h"

#include <algorithm>

namespace trunkline {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// The most of each, whatever the timeout. A rank that waits asks every slice what the others do; an answer older than
// half the silence says nothing of what a rank does now, and one older than all of it means that its process does not
// run.
constexpr milliseconds kSlice{1000}, kSilence{3000};
// For a lost data connection, the news of its cause may take this long.
constexpr milliseconds kReasonPatience{2000};
constexpr milliseconds kReasonSlice{20};

double seconds(nanoseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace

Watch::Watch(size_t rank, std::vector<Member> members, std::vector<MessageStream> control, milliseconds timeout)
    : rank_(rank),
      timeout_(timeout),
      peers_(members.size()),
      control_(rank, std::move(members), std::move(control),
               {.status = [this] { return status(); },
                .on_status = [this](size_t peer, const std::string& text) { on_status(peer, text); },
                .last_operation = [this](size_t peer) { return last_operation(peer); }}) {}

void Watch::begin(const Operation& operation, const Team& team) {
  {
    const std::lock_guard lock(mutex_);
    current_ = operation;
  }
  check();
  for (size_t place = 0; place < team.ranks.size(); ++place) {
    if (place == team.place || (operation.pairwise() && static_cast<size_t>(operation.root) != place)) continue;
    if (!control_.has_left(team.ranks[place])) continue;
    fail_job(Error(ErrorKind::peer, left_text(team.ranks[place])));
    check();
  }
}

void Watch::end() {
  const std::lock_guard lock(mutex_);
  previous_ = std::exchange(current_, std::nullopt);
}

void Watch::heard(size_t peer, const Operation& operation) {
  const std::lock_guard lock(mutex_);
  peers_[peer].last = operation;
}

void Watch::fail_job(const std::exception& error) {
  const Error* const known = dynamic_cast<const Error*>(&error);
  fail_job(known != nullptr ? *known : Error(ErrorKind::system, fmt::format("{}: {}", who(rank_), error.what())));
}

void Watch::check() const {
  if (!control_.has_failed()) return;
  if (const auto failure = control_.failure()) throw Error(failure->kind, failure->text);
}

int Watch::slice_ms() const {
  return static_cast<int>(
      std::clamp<int64_t>(std::chrono::ceil<milliseconds>(timeout_ / 8).count(), 1, kSlice.count()));
}

nanoseconds Watch::silence() const { return std::min<nanoseconds>(timeout_ / 2, kSilence); }

void Watch::still_waiting(Wait& wait, nanoseconds slept, std::span<const size_t> awaited) {
  uint64_t advances = advances_.load(std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    for (const size_t peer : awaited) advances += peers_[peer].advances;
  }
  if (advances != wait.advances) wait = {.advances = advances};
  // A process that was itself stopped has slept far longer than a slice, and has not waited.
  wait.waited += std::min<nanoseconds>(slept, milliseconds(2 * slice_ms()));
  if (wait.waited < timeout_) {
    control_.ask_status();
    return;
  }
  std::vector<std::string> states;
  for (const size_t peer : awaited) states.push_back(state_of(peer));
  std::string operation;
  {
    const std::lock_guard lock(mutex_);
    operation = current_ ? current_->text() : "an operation";
  }
  fail(ErrorKind::timeout, "{}: no progress for {:.1f} s in {}: {}", who(rank_), seconds(wait.waited), operation,
       fmt::join(states, "; "));
}

void Watch::link_lost(size_t peer, const std::string& how) {
  const Deadline deadline = Deadline::after(kReasonPatience);
  while (!deadline.expired()) {
    check();
    if (control_.has_left(peer)) throw Error(ErrorKind::peer, left_text(peer));
    wait_readable(interrupt(), static_cast<int>(kReasonSlice.count()));
  }
  cables_lost(peer, how);
}

void Watch::cables_lost(size_t peer, const std::string& how) {
  check();
  if (control_.has_left(peer)) throw Error(ErrorKind::peer, left_text(peer));
  fail(ErrorKind::peer, "{}: a data connection to {} was lost: {}; {}", who(rank_), who(peer), how,
       last_operation(peer));
}

bool Watch::is_in_operation(size_t peer) {
  const std::lock_guard lock(mutex_);
  const Peer& each = peers_[peer];
  return each.answered && Clock::now() - *each.answered < silence() / 2 && each.in_operation;
}

std::string Watch::status() {
  const std::lock_guard lock(mutex_);
  std::string text = "no operation";
  if (current_) {
    text = "in " + current_->text();
  } else if (previous_) {
    text = "outside any operation, the last one was " + previous_->text();
  }
  return Encoder().put(advances_.load(std::memory_order_relaxed)).put(text).put(current_.has_value()).take();
}

void Watch::on_status(size_t peer, const std::string& status) {
  Decoder decoder(status);
  const uint64_t advances = decoder.get<uint64_t>();
  std::string text = decoder.text();
  const bool in_operation = decoder.get<uint8_t>() != 0;
  const std::lock_guard lock(mutex_);
  peers_[peer].advances = advances;
  peers_[peer].status = std::move(text);
  peers_[peer].in_operation = in_operation;
  peers_[peer].answered = Clock::now();
}

std::string Watch::last_operation(size_t peer) {
  const std::lock_guard lock(mutex_);
  const auto& last = peers_[peer].last;
  return last ? "its last operation was " + last->text() : "it had begun no operation";
}

// Late and dead are told apart: a dead rank is a Failure of its own; here are those that live, or seem to.
std::string Watch::state_of(size_t peer) {
  const std::lock_guard lock(mutex_);
  const Peer& each = peers_[peer];
  if (!each.answered || Clock::now() - *each.answered > silence()) {
    return fmt::format("{} does not answer though its machine does: its process is stopped or starved", who(peer));
  }
  return fmt::format("{} is late, not dead: {}", who(peer), each.status);
}

std::string Watch::left_text(size_t peer) {
  return fmt::format("{} has left the job; {}", who(peer), last_operation(peer));
}

}  // namespace trunkline

#include "link/rendezvous.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>

#include "base/log.h"
#include "link/acceptor.h"
#include "link/handshake.h"

namespace trunkline {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr milliseconds kRetryEvery{50};
constexpr milliseconds kCheckEvery{100};
constexpr seconds kStillWaitingAfter{10};  // then the log says for whom, and again every so often
// Another job's rank 0 may hold the port for a moment longer; a key that is still wrong after that is wrong.
constexpr seconds kWrongKeyPatience{3};
// The others leave the verdict on who is missing to rank 0, and give up this much later.
constexpr seconds kAfterRankZero{2};

std::string encode(const Error& error) {
  return Encoder().put(static_cast<uint8_t>(error.kind())).put(std::string_view(error.what())).take();
}

[[noreturn]] void throw_refusal(const Message& message) {
  Decoder decoder(message.payload);
  const auto kind = static_cast<ErrorKind>(decoder.get<uint8_t>());
  throw Error(kind, decoder.text());
}

std::string list(const std::vector<int>& ranks) {
  return fmt::format("{} {}", ranks.size() == 1 ? "rank" : "ranks", fmt::join(ranks, ", "));
}

class Rendezvous {
 public:
  explicit Rendezvous(const Place& place)
      : place_(place), key_(place.job_key), deadline_(Deadline::after(place.timeout)) {
    hello_.size = place.size;
    hello_.lanes = place.lanes;
    hello_.settings = place.settings;
    hello_.member.host = host_name();
    hello_.member.pid = ::getpid();
    wiring_.members.resize(ranks());
    wiring_.control.resize(ranks());
  }

  Connections run() {
    const std::vector<Address> coordinator = coordinator_addresses();
    if (place_.rank == 0) {
      listen(coordinator);
      told([this] {
        admit_all();
        welcome_all();
        accept_pairs();
        await_ready();
      });
      for (MessageStream& each : wiring_.control) each.write(Message::Type::start, "");
    } else {
      join(coordinator);
      told([this] {
        await_welcome();
        connect_pairs();
        accept_pairs();
      });
      wiring_.control[0].write(Message::Type::ready, "");
      await(wiring_.control[0], Message::Type::start);
    }
    return std::move(wiring_);
  }

 private:
  size_t ranks() const { return static_cast<size_t>(place_.size); }
  size_t rank() const { return static_cast<size_t>(place_.rank); }

  // Without a key, every process that can reach the port could join; on loopback those are this machine's own.
  std::vector<Address> coordinator_addresses() const {
    std::vector<Address> addresses = Address::resolve(place_.coordinator);
    for (const Address& each : addresses) {
      if (each.wildcard()) {
        fail(ErrorKind::input, "coordinator {}: name the address of rank 0 that the others reach; this stands for all",
             place_.coordinator);
      }
      if (key_.empty() && !each.loopback()) {
        fail(ErrorKind::input,
             "coordinator {} can be reached from other machines, and this job has no key to keep them out: start the "
             "ranks with `trunkline launch`, or set TRUNKLINE_JOB_KEY to the same secret for every rank (openssl rand "
             "-hex 32 makes one)",
             place_.coordinator);
      }
    }
    return addresses;
  }

  // Runs `step`; its failure is told to every rank that has joined (rank 0) or to rank 0 (the others).
  template <typename Step>
  void told(Step step) {
    try {
      step();
    } catch (const Error& error) {
      for (MessageStream& each : wiring_.control) each.write(Message::Type::refusal, encode(error));
      throw;
    }
  }

  void listen(const std::vector<Address>& addresses) {
    Fd listener;
    if (place_.listen_fd) {
      listener = inherited_listener();
    } else {
      for (size_t i = 0; !listener; ++i) {
        try {
          listener = listen_on(addresses[i]);
        } catch (const Error&) {
          if (i + 1 == addresses.size()) throw;
        }
      }
    }
    acceptor_.emplace(std::move(listener), key_, place_.rank);
    hello_.member.address = acceptor_->address().text();
  }

  Fd inherited_listener() const {
    const int fd = *place_.listen_fd;
    int listening = 0;
    socklen_t size = sizeof listening;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 || listening == 0) {
      fail(ErrorKind::input, "TRUNKLINE_LISTEN_FD: descriptor {} is not a listening socket", fd);
    }
    set_close_on_exec(fd);
    set_non_blocking(fd);
    return Fd(fd);
  }

  // --- rank 0: the table

  void admit_all() {
    const auto start = Clock::now();
    auto remind = start + kStillWaitingAfter;
    wiring_.members[0] = hello_.member;
    if (hello_.lanes == 0) hello_.lanes = place_.default_lanes;
    for (std::vector<int> missing = absent(); !missing.empty(); missing = absent()) {
      if (deadline_.expired()) {
        fail(ErrorKind::timeout,
             "{} of {} did not join the job at {} within {:.1f} s: see whether they run and what they said; start "
             "every rank with the same MLX_JACCL_COORDINATOR, MLX_WORLD_SIZE and TRUNKLINE_JOB_KEY",
             list(missing), place_.size, hello_.member.address, std::chrono::duration<double>(place_.timeout).count());
      }
      if (Clock::now() > remind) {
        spdlog::warn("waiting at {} for {} of {}", hello_.member.address, list(missing), place_.size);
        remind += kStillWaitingAfter;
      }
      if (auto proven = acceptor_->next(slice_ms())) admit(std::move(*proven));
      check_joined();
    }
  }

  std::vector<int> absent() const {
    std::vector<int> missing;
    for (int each = 1; each < place_.size; ++each) {
      if (!wiring_.control[static_cast<size_t>(each)]) missing.push_back(each);
    }
    return missing;
  }

  void admit(Proven proven) {
    if (proven.claim.purpose != Claim::Purpose::join) return;  // left over from a rank that has failed
    MessageStream stream(std::move(proven.fd));
    const Hello hello = Hello::decode(proven.payload);
    const size_t from = proven.claim.from;
    const bool taken = from == 0 || (from < ranks() && wiring_.control[from]);
    try {
      check_fits(from, hello, hello_, taken ? &wiring_.members[from] : nullptr);
    } catch (const Error& error) {
      stream.write(Message::Type::refusal, encode(error));
      throw;
    }
    wiring_.members[from] = hello.member;
    wiring_.control[from] = std::move(stream);
  }

  void welcome_all() {
    Encoder table;
    table.put(static_cast<uint32_t>(hello_.lanes));
    for (const Member& each : wiring_.members) table.put(each.pid).put(each.host).put(each.address);
    const std::string bytes = table.take();
    for (MessageStream& each : wiring_.control) each.write(Message::Type::welcome, bytes);
  }

  void await_ready() {
    for (size_t each = 1; each < ranks(); ++each) await(wiring_.control[each], Message::Type::ready);
  }

  // A rank that has joined and is gone, or that says why it cannot go on.
  void check_joined() {
    for (size_t each = 0; each < ranks(); ++each) {
      MessageStream& stream = wiring_.control[each];
      if (!stream || (place_.rank != 0 && each != 0) || stream.read()) continue;
      if (auto message = stream.next(); message && message->type == Message::Type::refusal) throw_refusal(*message);
      fail(ErrorKind::peer, "{} went away before the ranks were connected", who(each, wiring_.members[each]));
    }
  }

  // --- the other ranks

  // Tries every address of the coordinator again and again: ranks may start in any order.
  void join(const std::vector<Address>& addresses) {
    std::optional<Deadline> wrong_key;
    const Deadline deadline = Deadline::after(place_.timeout + kAfterRankZero);
    for (;;) {
      std::vector<std::string> attempts;
      for (const Address& address : addresses) {
        std::string reason;
        if (join_at(address, deadline, reason, wrong_key)) return;
        attempts.push_back(fmt::format("{}: {}", address.text(), reason));
      }
      if (wrong_key && wrong_key->expired()) {
        fail(ErrorKind::input,
             "rank {}: the process that listens at {} does not have this job's key: TRUNKLINE_JOB_KEY "
             "must be the same for every rank",
             place_.rank, place_.coordinator);
      }
      if (deadline.left() < kAfterRankZero) {
        fail(ErrorKind::timeout, "rank {} could not join rank 0 at {} within {:.1f} s; last tried: {}", place_.rank,
             place_.coordinator, std::chrono::duration<double>(place_.timeout).count(), fmt::join(attempts, "; "));
      }
      ::poll(nullptr, 0, static_cast<int>(kRetryEvery.count()));
    }
  }

  bool join_at(const Address& address, Deadline deadline, std::string& reason, std::optional<Deadline>& wrong_key) {
    const Patience patience{deadline};
    Fd fd = connect_to(address, patience, reason);
    if (!fd) return false;
    // The address by which this rank reaches rank 0 is the one that it can be reached at.
    acceptor_.emplace(listen_on(Address::local_of(fd.get()).with_port(0)), key_, place_.rank);
    hello_.member.address = acceptor_->address().text();
    const Claim claim{Claim::Purpose::join, 0, static_cast<uint32_t>(rank()), 0};
    try {
      if (prove(fd.get(), key_, claim, hello_.encode(), patience) == Verdict::wrong_key) {
        reason = "does not have this job's key";
        if (!wrong_key) wrong_key = Deadline::after(kWrongKeyPatience);
        return false;
      }
    } catch (const Error& error) {
      reason = error.what();
      return false;
    }
    wiring_.control[0] = MessageStream(std::move(fd));
    rank_zero_ = address.text();
    return true;
  }

  void await_welcome() {
    const Message message = await(wiring_.control[0], Message::Type::welcome);
    Decoder decoder(message.payload);
    hello_.lanes = static_cast<int32_t>(decoder.get<uint32_t>());
    for (Member& each : wiring_.members) {
      each.pid = decoder.get<int64_t>();
      each.host = decoder.text();
      each.address = decoder.text();
    }
    wiring_.members[0].address = rank_zero_;  // where it was reached
  }

  // --- every pair

  void connect_pairs() {
    prepare_lanes();
    for (size_t peer = 0; peer < rank(); ++peer) {
      if (peer != 0) wiring_.control[peer] = MessageStream(connect_pair(peer, Claim::Purpose::control, 0));
      for (size_t lane = 0; lane < wiring_.lanes.size(); ++lane) {
        wiring_.lanes[lane][peer] = TcpLink(connect_pair(peer, Claim::Purpose::lane, lane));
      }
    }
  }

  Fd connect_pair(size_t peer, Claim::Purpose purpose, size_t lane) {
    const Member& member = wiring_.members[peer];
    const Address address = Address::resolve(member.address).front();
    const Claim claim{purpose, static_cast<uint32_t>(lane), static_cast<uint32_t>(rank()), static_cast<uint32_t>(peer)};
    const Patience patience{deadline_, [this] { check_joined(); }};
    for (;;) {
      std::string reason;
      Fd fd = connect_to(address, patience, reason);
      if (fd) {
        try {
          if (prove(fd.get(), key_, claim, "", patience) == Verdict::accepted) return fd;
          reason = "does not have this job's key";
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::system) throw;
          reason = error.what();
        }
      }
      if (deadline_.expired()) {
        fail(ErrorKind::timeout, "rank {} ({}) could not connect to {} at {}: {}", rank(), hello_.member.host,
             who(peer, member), address.text(), reason);
      }
      ::poll(nullptr, 0, static_cast<int>(kRetryEvery.count()));
    }
  }

  void accept_pairs() {
    prepare_lanes();
    for (std::vector<int> missing = unconnected(); !missing.empty(); missing = unconnected()) {
      if (deadline_.expired()) {
        fail(ErrorKind::timeout, "{} of {} joined the job but did not connect to rank {} at {} within {:.1f} s",
             list(missing), place_.size, place_.rank, hello_.member.address,
             std::chrono::duration<double>(place_.timeout).count());
      }
      auto proven = acceptor_->next(slice_ms());
      if (!proven) {
        check_joined();
        continue;
      }
      const Claim& claim = proven->claim;
      if (claim.from <= rank() || claim.from >= ranks()) continue;
      if (claim.purpose == Claim::Purpose::control && place_.rank != 0) {
        wiring_.control[claim.from] = MessageStream(std::move(proven->fd));
      } else if (claim.purpose == Claim::Purpose::lane && claim.lane < wiring_.lanes.size()) {
        wiring_.lanes[claim.lane][claim.from] = TcpLink(std::move(proven->fd));
      }
    }
    acceptor_.reset();
  }

  // The higher ranks of which a connection has not come yet.
  std::vector<int> unconnected() const {
    std::vector<int> missing;
    for (size_t peer = rank() + 1; peer < ranks(); ++peer) {
      const bool whole = wiring_.control[peer] && std::all_of(wiring_.lanes.begin(), wiring_.lanes.end(),
                                                              [&](const auto& links) { return links[peer].fd() >= 0; });
      if (!whole) missing.push_back(static_cast<int>(peer));
    }
    return missing;
  }

  void prepare_lanes() {
    wiring_.lanes.resize(static_cast<size_t>(hello_.lanes));
    for (auto& links : wiring_.lanes) links.resize(ranks());
  }

  // The next message of a rank that has joined.
  Message await(MessageStream& stream, Message::Type type) {
    const size_t peer = static_cast<size_t>(&stream - wiring_.control.data());
    const Deadline deadline = place_.rank == 0 ? deadline_ : Deadline::after(deadline_.left() + kAfterRankZero);
    for (;;) {
      const bool open = stream.read();
      if (auto message = stream.next()) {
        if (message->type == Message::Type::refusal) throw_refusal(*message);
        if (message->type == type) return *message;
        fail(ErrorKind::peer, "{} said something unexpected", who(peer, wiring_.members[peer]));
      }
      if (!open)
        fail(ErrorKind::peer, "{} went away before the ranks were connected", who(peer, wiring_.members[peer]));
      if (!wait_for(stream.fd(), POLLIN, {deadline})) {
        fail(ErrorKind::timeout, "{} joined the job but was not connected to every other rank within {:.1f} s",
             who(peer, wiring_.members[peer]), std::chrono::duration<double>(place_.timeout).count());
      }
    }
  }

  int slice_ms() const { return std::min<int>(deadline_.left_ms(), static_cast<int>(kCheckEvery.count())); }

  const Place& place_;
  const JobKey key_;
  const Deadline deadline_;
  Hello hello_;  // of this rank; its lanes are those of the job once they are known
  std::string rank_zero_;
  std::optional<Acceptor> acceptor_;
  Connections wiring_;
};

}  // namespace

Connections rendezvous(const Place& place) {
  Connections wiring = Rendezvous(place).run();
  for (MessageStream& each : wiring.control) {
    if (each) watch_liveness(each.fd());
  }
  return wiring;
}

}  // namespace trunkline

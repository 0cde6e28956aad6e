// For tests: ranks as forked processes on emulated cables that set up their trunks, and tell each other what they have
// to through shared memory.
#pragma once

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/fail.h"
#include "base/log.h"
#include "fabric/job_test.h"
#include "link/verbs_trunks.h"

namespace trunkline::test {

class Ranks {
 public:
  static constexpr int kMost = 4;

  // What became of a rank's connect_trunks and `body`.
  struct Result {
    int code = 0;        // exit code of the process; 3: an Error was thrown
    ErrorKind kind{};    // of that
    std::string text;    // its message
    double seconds = 0;  // until then, or until it was connected
    std::string log;     // what was logged on the way
  };
  using Change = std::function<void(int rank, TrunkOptions&)>;
  using Body = std::function<void(int rank, std::vector<LaneTrunks>&, const Exchange&)>;

  // The matrix is that of the wiring, unless `change` gives another.
  Ranks(const Wiring& wiring, Change change = {}) : wiring_(wiring), change_(std::move(change)) {
    void* const memory = ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (memory) Shared{};
  }
  ~Ranks() { ::munmap(shared_, sizeof *shared_); }
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  void start(const Body& body = {}) {
    job_ = std::make_unique<Job>(wiring_.ranks, to_json(wiring_));
    for (int rank = 0; rank < wiring_.ranks; ++rank) {
      pids_.push_back(job_->start(rank, [&](int own) { work(own, body); }));
    }
  }

  std::vector<Result> finish() {
    std::vector<Result> results(pids_.size());
    for (size_t rank = 0; rank < pids_.size(); ++rank) {
      const Outcome& outcome = shared_->outcomes[rank];
      results[rank].code = job_->wait(pids_[rank]);
      results[rank].kind = outcome.kind;
      results[rank].text = outcome.text;
      results[rank].seconds = outcome.seconds;
      results[rank].log = outcome.log;
    }
    return results;
  }

  std::vector<Result> run(const Body& body = {}) {
    start(body);
    return finish();
  }

 private:
  struct Mail {
    std::atomic<uint32_t> written, read;
    uint32_t size;
    char bytes[1 << 16];
  };
  struct Outcome {
    ErrorKind kind;
    double seconds;
    char text[4096], log[4096];
  };
  struct Shared {
    std::atomic<bool> failed;
    Mail mails[kMost][kMost];
    Outcome outcomes[kMost];
  };

  static void store(char (&place)[4096], const std::string& text) {
    std::strncpy(place, text.c_str(), sizeof place - 1);
  }

  std::vector<std::string> exchange(int rank, uint32_t round, const std::vector<std::string>& out) {
    const auto wait = [this](const std::atomic<uint32_t>& counter, uint32_t value) {
      const auto end = std::chrono::steady_clock::now() + 30s;
      while (counter != value) {
        if (shared_->failed) fail(ErrorKind::peer, "another rank has failed");
        if (std::chrono::steady_clock::now() > end) fail(ErrorKind::timeout, "another rank says nothing");
        std::this_thread::sleep_for(20us);
      }
    };
    std::vector<std::string> in(out.size());
    for (int peer = 0; peer < wiring_.ranks; ++peer) {
      if (peer == rank) continue;
      Mail& mail = shared_->mails[rank][peer];
      wait(mail.read, round);
      REQUIRE(out[peer].size() <= sizeof mail.bytes);
      mail.size = static_cast<uint32_t>(out[peer].size());
      std::memcpy(mail.bytes, out[peer].data(), mail.size);
      mail.written = round + 1;
    }
    for (int peer = 0; peer < wiring_.ranks; ++peer) {
      if (peer == rank) continue;
      Mail& mail = shared_->mails[peer][rank];
      wait(mail.written, round + 1);
      in[peer].assign(mail.bytes, mail.size);
      mail.read = round + 1;
    }
    return in;
  }

  void work(int rank, const Body& body) {
    std::ostringstream logged;
    auto logger = std::make_shared<spdlog::logger>("", std::make_shared<spdlog::sinks::ostream_sink_mt>(logged));
    logger->set_pattern("%l: %v");
    spdlog::set_default_logger(logger);
    Outcome& outcome = shared_->outcomes[rank];
    TrunkOptions options;
    options.rank = rank;
    options.matrix = device_matrix(wiring_);
    options.slot_bytes = 8192;
    options.receives = 32;
    options.sends = 32;
    options.extra_bytes = 16384;
    options.timeout = 5s;
    options.library = TRUNKLINE_BINARY_DIR "/fabric/libibverbs.so.1";
    if (change_) change_(rank, options);
    const auto start = std::chrono::steady_clock::now();
    const auto elapsed = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    int code = 0;
    try {
      const Exchange tell = [this, rank, round = uint32_t{0}](const std::vector<std::string>& out) mutable {
        return exchange(rank, round++, out);
      };
      std::vector<LaneTrunks> lanes = connect_trunks(options, tell);
      outcome.seconds = elapsed();
      if (body) body(rank, lanes, tell);
    } catch (const Error& error) {
      outcome.seconds = elapsed();
      outcome.kind = error.kind();
      store(outcome.text, error.what());
      shared_->failed = true;
      code = 3;
    }
    store(outcome.log, logged.str());
    // As a program ends, not as a test's child does: with destructors, and a sanitizer's last word.
    std::exit(code);
  }

  Wiring wiring_;
  Change change_;
  Shared* shared_;
  std::unique_ptr<Job> job_;
  std::vector<pid_t> pids_;
};

// Every link says who it is, and hears that from the same link of the peer.
inline void exchange_names(int rank, std::vector<LaneTrunks>& lanes, const Exchange& tell) {
  const auto patience = std::chrono::steady_clock::now() + 10s;
  const auto said = [](int from, size_t to, size_t lane, size_t cable) {
    return std::to_string(from) + " to " + std::to_string(to) + " lane " + std::to_string(lane) + " cable " +
           std::to_string(cable);
  };
  const std::vector<std::string> nothing(lanes[0].trunks.size());
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    char* next = reinterpret_cast<char*>(lanes[lane].slab.data());
    for (size_t peer = 0; peer < nothing.size(); ++peer) {
      for (size_t cable = 0; cable < lanes[lane].trunks[peer].size(); ++cable, next += 256) {
        TrunkLink& each = lanes[lane].trunks[peer][cable];
        const std::string text = said(rank, peer, lane, cable);
        std::memcpy(next, text.c_str(), text.size() + 1);
        REQUIRE(each.receives > 0 && each.peer_receives > 0 && each.sends > 0);
        REQUIRE(each.link->post_send(reinterpret_cast<std::byte*>(next), static_cast<uint32_t>(text.size() + 1), 7));
      }
    }
  }
  for (size_t lane = 0; lane < lanes.size(); ++lane) {
    for (size_t peer = 0; peer < nothing.size(); ++peer) {
      for (size_t cable = 0; cable < lanes[lane].trunks[peer].size(); ++cable) {
        TrunkLink& each = lanes[lane].trunks[peer][cable];
        bool sent = false, received = false;
        while (!sent || !received) {
          REQUIRE(std::chrono::steady_clock::now() < patience);
          MessageCompletion completions[4];
          const size_t count = each.link->poll(completions);
          for (size_t i = 0; i < count; ++i) {
            REQUIRE(completions[i].good);
            if (completions[i].kind == MessageCompletion::Kind::sent) {
              REQUIRE(!sent && completions[i].id == 7);
              sent = true;
            } else {
              REQUIRE(!received && completions[i].id == 0);
              received = true;
              const std::string expected = said(static_cast<int>(peer), static_cast<size_t>(rank), lane, cable);
              REQUIRE(reinterpret_cast<const char*>(each.receive_slots) == expected);
              REQUIRE(completions[i].bytes == expected.size() + 1);
            }
          }
        }
      }
    }
  }
  tell(nothing);
}

}  // namespace trunkline::test

// How a connection proves, before anything else, that both its ends belong to the job: each answers the other's random
// challenge with an HMAC-SHA256 under the job key, over all that was said and who says it to whom for what. So a proof
// cannot be replayed on another connection, for another purpose, or sent back to its maker.
//
//   connecting rank -> listening rank   magic, claim, challenge
//   listening -> connecting             magic, challenge, proof
//   connecting -> listening             proof (over the payload too), length, payload
//   listening -> connecting             one byte: accepted
//
// This layout is the same in every wire version: versions are compared after it, in the payload of the first
// connection.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "link/socket.h"

namespace trunkline {

class JobKey {
 public:
  // Hexadecimal, of at least 128 bits; empty: a job that is open to every process of this machine. Throws Error(input).
  explicit JobKey(const std::string& hex);

  bool empty() const { return bytes_.empty(); }
  std::array<std::byte, 32> sign(std::string_view text) const;
  bool verify(std::string_view text, const std::byte* proof) const;

 private:
  std::string bytes_;
};

// What a connection is for.
struct Claim {
  enum class Purpose : uint8_t { join = 1, control = 2, lane = 3 };
  Purpose purpose;
  uint32_t lane = 0;
  uint32_t from = 0;  // the connecting rank
  uint32_t to = 0;    // the listening rank
};

enum class Verdict { accepted, wrong_key };

// The connecting side. Throws Error(system) if the other side is lost, silent or something else altogether.
Verdict prove(int fd, const JobKey& key, const Claim& claim, std::string_view payload, const Patience& patience);

// The listening side, fed without waiting, so that a silent stranger keeps nobody else out.
class Doorkeeper {
 public:
  Doorkeeper(Fd fd, const JobKey& key, uint32_t rank);

  // Takes what has come; true once the other side has proved the key. Throws Error(peer) with the reason to turn it
  // away.
  bool advance();

  int fd() const { return fd_.get(); }
  const std::string& from() const { return from_; }  // the address of the other side
  const Claim& claim() const { return claim_; }
  const std::string& payload() const { return payload_; }
  Fd take() { return std::move(fd_); }
  bool expired() const { return deadline_.expired(); }
  // The reason to turn away one that took too long.
  std::string lateness() const;

 private:
  bool have(size_t bytes);
  void send(std::string_view bytes);
  void answer_challenge();

  Fd fd_;
  std::string from_;
  const JobKey* key_;
  uint32_t rank_;
  Deadline deadline_;
  std::string in_;
  std::string said_;  // what the proofs are over
  bool answered_ = false;
  Claim claim_{};
  std::string payload_;
};

}  // namespace trunkline

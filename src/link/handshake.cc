#include "link/handshake.h"

#include <sodium.h>

#include "link/message.h"

namespace trunkline {
namespace {

constexpr std::string_view kMagic = "trunkln1";
constexpr size_t kChallengeBytes = 32;
constexpr size_t kProofBytes = crypto_auth_hmacsha256_BYTES;
constexpr size_t kClaimBytes = 13;
constexpr size_t kOpeningBytes = 8 + kClaimBytes + kChallengeBytes;
constexpr size_t kMaxPayloadBytes = 4096;
constexpr size_t kMinKeyBytes = 16;
constexpr std::chrono::seconds kPatience{5};
constexpr char kAccepted = 'y';

std::string challenge() {
  std::string bytes(kChallengeBytes, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string encode(const Claim& claim) {
  return Encoder().put(claim.purpose).put(claim.lane).put(claim.from).put(claim.to).take();
}

std::string_view view(const std::array<std::byte, kProofBytes>& proof) {
  return {reinterpret_cast<const char*>(proof.data()), proof.size()};
}

}  // namespace

JobKey::JobKey(const std::string& hex) {
  if (sodium_init() < 0) fail(ErrorKind::system, "libsodium cannot be initialized");
  if (hex.empty()) return;
  bytes_.resize(hex.size() / 2);
  size_t size = 0;
  const char* end = nullptr;
  const int code = sodium_hex2bin(reinterpret_cast<unsigned char*>(bytes_.data()), bytes_.size(), hex.data(),
                                  hex.size(), nullptr, &size, &end);
  if (code != 0 || end != hex.data() + hex.size() || size < kMinKeyBytes) {
    fail(ErrorKind::input,
         "TRUNKLINE_JOB_KEY: not a key of at least {} hexadecimal digits (openssl rand -hex 32 makes one)",
         2 * kMinKeyBytes);
  }
}

std::array<std::byte, 32> JobKey::sign(std::string_view text) const {
  std::array<std::byte, kProofBytes> proof;
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(bytes_.data()), bytes_.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(text.data()), text.size());
  crypto_auth_hmacsha256_final(&state, reinterpret_cast<unsigned char*>(proof.data()));
  return proof;
}

bool JobKey::verify(std::string_view text, const std::byte* proof) const {
  return sodium_memcmp(sign(text).data(), proof, kProofBytes) == 0;
}

Verdict prove(int fd, const JobKey& key, const Claim& claim, std::string_view payload, const Patience& patience) {
  const auto send = [&](std::string_view bytes) { write_all(fd, std::as_bytes(std::span(bytes)), patience); };
  const auto receive = [&](size_t size) {
    std::string bytes(size, '\0');
    read_all(fd, std::as_writable_bytes(std::span(bytes)), patience);
    return bytes;
  };

  std::string said = std::string(kMagic) + encode(claim) + challenge();
  send(said);
  if (receive(kMagic.size()) != kMagic) fail(ErrorKind::system, "something else answers there");
  said += receive(kChallengeBytes);
  const std::string proof = receive(kProofBytes);
  if (!key.verify("listening" + said, reinterpret_cast<const std::byte*>(proof.data()))) return Verdict::wrong_key;
  std::string reply(view(key.sign("connecting" + said + std::string(payload))));
  reply += Encoder().put(payload).take();
  send(reply);
  receive(1);
  return Verdict::accepted;
}

Doorkeeper::Doorkeeper(Fd fd, const JobKey& key, uint32_t rank)
    : fd_(std::move(fd)),
      from_(Address::peer_of(fd_.get()).text()),
      key_(&key),
      rank_(rank),
      deadline_(Deadline::after(kPatience)) {}

// No more is read than the step needs, so that what follows the handshake stays in the socket.
bool Doorkeeper::have(size_t bytes) {
  while (in_.size() < bytes) {
    std::byte buffer[512];
    const size_t want = std::min(sizeof buffer, bytes - in_.size());
    const auto count = read_some(fd_.get(), std::span(buffer, want));
    if (!count) fail(ErrorKind::peer, "closed the connection before proving the job key");
    if (*count == 0) return false;
    in_.append(reinterpret_cast<const char*>(buffer), *count);
    const size_t check = std::min(in_.size(), kMagic.size());
    if (!answered_ && in_.compare(0, check, kMagic, 0, check) != 0) {
      fail(ErrorKind::peer, "does not speak this protocol");
    }
  }
  return true;
}

// A connection this young has room for so few bytes.
void Doorkeeper::send(std::string_view bytes) {
  const auto count = write_some(fd_.get(), std::as_bytes(std::span(bytes)));
  if (count != bytes.size()) fail(ErrorKind::peer, "takes no answer");
}

void Doorkeeper::answer_challenge() {
  Decoder decoder(std::string_view(in_).substr(kMagic.size()));
  claim_.purpose = decoder.get<Claim::Purpose>();
  claim_.lane = decoder.get<uint32_t>();
  claim_.from = decoder.get<uint32_t>();
  claim_.to = decoder.get<uint32_t>();
  if (claim_.to != rank_) fail(ErrorKind::peer, "looks for rank {}; this is rank {}", claim_.to, rank_);
  const std::string own = challenge();
  said_ = in_ + own;
  send(std::string(kMagic) + own + std::string(view(key_->sign("listening" + said_))));
  in_.clear();
  answered_ = true;
}

bool Doorkeeper::advance() {
  if (!answered_) {
    if (!have(kOpeningBytes)) return false;
    answer_challenge();
  }
  constexpr size_t kFixed = kProofBytes + sizeof(uint32_t);
  if (!have(kFixed)) return false;
  const size_t size = Decoder(std::string_view(in_).substr(kProofBytes)).get<uint32_t>();
  if (size > kMaxPayloadBytes) fail(ErrorKind::peer, "does not speak this protocol");
  if (!have(kFixed + size)) return false;
  payload_ = in_.substr(kFixed);
  if (!key_->verify("connecting" + said_ + payload_, reinterpret_cast<const std::byte*>(in_.data()))) {
    fail(ErrorKind::peer, "does not have this job's key");
  }
  send({&kAccepted, 1});
  return true;
}

std::string Doorkeeper::lateness() const {
  return fmt::format("did not prove the job key within {} s", kPatience.count());
}

}  // namespace trunkline

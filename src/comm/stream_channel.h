// Channel over one ordered byte stream to each rank. On a stream, an operation is its announcement (an Opening) and
// then frames, each with a header that says which bytes of which part it carries.
//
// One thread at a time uses a channel; channels share nothing but the Watch.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <vector>

#include "comm/channel.h"
#include "comm/watch.h"
#include "link/tcp_link.h"

namespace trunkline {

class StreamChannel final : public Channel {
 public:
  struct Options {
    size_t frame_bytes;
    std::chrono::nanoseconds spin;  // how long a wait polls before it sleeps
  };

  // `links`: by rank, none for `rank` itself.
  StreamChannel(size_t rank, std::vector<TcpLink> links, Watch& watch, const Options& options);

  bool reaches(size_t) const override { return true; }
  size_t frame_bytes() const override { return options_.frame_bytes; }

  void open(const Operation& operation, const Team& team) override;
  void announce(size_t, Part, size_t) override {}
  void send(std::span<const size_t> peers, Part part, ConstBytes bytes) override;
  std::byte* frame_for(std::span<const size_t>, Part, size_t) override { return nullptr; }
  void receive(size_t peer, Part part, Bytes into) override;
  void stage(size_t peer, size_t bytes) override;
  std::span<const std::byte* const> collect(size_t offset, const std::byte* own) override;
  void await_sent(Part part, size_t bytes) override;
  void await_received(size_t peer, Part part, size_t bytes) override;
  void close() override;

  Stopwatch& stopwatch() override { return stopwatch_; }
  void add_traffic(std::vector<CableTraffic>& cables) const override;

 private:
  static constexpr size_t kParts = 2;
  static constexpr size_t kStagedFrames = 4;
  static constexpr size_t kReadAhead = 8192;

  struct Outgoing {
    const std::byte* base = nullptr;
    size_t size = 0;    // given by send()
    size_t framed = 0;  // cut into frames
    size_t sent = 0;    // taken by the link
  };

  struct Incoming {
    std::byte* base = nullptr;  // where it goes; null: into the staging buffer
    size_t size = 0;            // expected
    size_t received = 0;
  };

  struct FrameHeader {
    uint64_t offset;  // in its part
    uint32_t length;
    Part part;
    std::array<uint8_t, 3> reserved;
  };

  struct Opening {
    uint32_t magic;
    Operation::Kind kind;
    Dtype dtype;
    Reduction reduction;
    Algorithm algorithm;
    uint64_t number;
    uint64_t count;
    int32_t root;
    uint32_t group;
  };

  // The frame that is being sent: what goes before its payload, and the payload.
  struct Sending {
    std::array<std::byte, sizeof(Opening) + sizeof(FrameHeader)> prefix;
    size_t prefix_size = 0;
    size_t payload_size = 0;
    const std::byte* payload = nullptr;
    Part part = Part::scatter;
    size_t done = 0;

    size_t size() const { return prefix_size + payload_size; }
  };

  struct Peer {
    TcpLink link;
    bool active = false;  // takes part in this operation

    std::array<Outgoing, kParts> out;
    bool opening_due = false;
    Sending sending;
    bool can_write = true;  // as far as known

    std::array<Incoming, kParts> in;
    bool opened = false;               // has announced this operation
    std::optional<FrameHeader> frame;  // that is being received
    size_t frame_left = 0;
    std::array<std::byte, kReadAhead> ahead;  // read, but not looked at yet
    size_t ahead_begin = 0, ahead_end = 0;
    std::vector<std::byte> staging;
    size_t collected = 0;  // of the staged part; what lies before it has made room
    bool can_read = true;

    std::atomic<uint64_t> bytes_sent{0}, bytes_received{0};  // of payload, in all

    bool all_received() const;
    bool all_sent() const;
    bool wants_read(size_t staging_bytes) const;
    size_t room(size_t staging_bytes) const;
    void took(size_t bytes);
    std::span<std::byte> next_place(size_t staging_bytes);
  };

  template <typename Done>
  void move_until(Done done);
  bool move_once();
  bool write_to(size_t index);
  bool read_from(size_t index);
  bool next_frame(Peer& peer);
  void digest(size_t index);
  void take_opening(size_t index);
  void take_header(size_t index);
  void sleep(Watch::Wait& wait);
  Peer& at(size_t place) { return peers_[team_.ranks[place]]; }
  size_t staging_bytes() const { return kStagedFrames * options_.frame_bytes; }

  const size_t rank_;
  const Options options_;
  Watch& watch_;
  std::vector<Peer> peers_;  // by rank of the job
  Operation operation_;
  Team team_;
  Stopwatch stopwatch_;
  std::vector<const std::byte*> collected_;
  std::vector<Interest> interests_;
  std::vector<size_t> awaited_;
};

}  // namespace trunkline

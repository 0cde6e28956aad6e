// Group: the ranks of a job and the collectives between them. The whole public API of comm.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trunkline/algorithm.h"
#include "trunkline/dtype.h"
#include "trunkline/error.h"

namespace trunkline {

// Which threads run the lanes: persistent ones, some made for each call, or the caller's alone (the paper's three
// ways).
enum class Workers { pool, per_call, single };

// Where a rank stands in its job and how it finds the others.
struct Config {
  int rank = 0;
  int size = 1;
  std::string coordinator;       // IP:PORT on which rank 0 listens
  std::optional<int> listen_fd;  // rank 0: a socket that already listens there, from the launcher
  std::string job_key;           // hex, shared by the ranks of one job; may be empty if all addresses are loopback
  std::chrono::milliseconds timeout{60'000};  // from the last progress
  int lanes = 0;                              // stripes of a message, each with its thread; 0: chosen
  Workers workers = Workers::pool;
  Algorithm algorithm = Algorithm::automatic;

  std::string devices;        // a file with the matrix of RDMA devices; empty: TCP
  int trunks = 0;             // cables used to each peer; 0: all
  size_t trunking_from = 0;   // bytes of a message that is cut among lanes, the same on every rank; 0: chosen
  size_t frame_bytes = 0;     // of payload, that one message over a cable carries; 0: chosen
  bool checksum = true;       // of every frame; without it damaged data goes unnoticed
  bool tcp_fallback = false;  // go on over TCP when all cables to a peer are lost, instead of ending the job

  // From the environment (docs/environment.md). With no rank named there, a job of one rank. Throws Error(input) on a
  // half-set environment: a rank never goes on alone when it was meant to have company.
  static Config from_env();
};

// What has crossed one cable of this rank since the group was connected, with all that was sent twice.
struct CableTraffic {
  std::string id;           // "rdma_en2", or "tcp"
  int peer = 0;             // its rank in the job
  uint64_t bytes_sent = 0;  // of payload
  uint64_t bytes_received = 0;
  bool working = true;
};

// Where the time of the lanes' threads in collectives went, in seconds, as the mean of the lanes. Their sum is the time
// in collectives.
struct Profile {
  double verbs = 0;     // in calls of the verbs library, or of the socket
  double copy = 0;      // into frames and out of them
  double reduce = 0;    // additions, with the stores of what they give
  double checksum = 0;  // where it is a pass of its own
  double protocol = 0;  // all that is none of the others
  double idle = 0;      // waiting
};

// When one lane worked on one call.
struct LaneSpan {
  int lane = 0;
  std::chrono::steady_clock::time_point start, end;
};

// A call that goes on while its caller does something else. Its buffers stay the caller's, untouched until it is done.
// Letting go of it does not end it: should it fail, the job has ended all the same.
class Work {
 public:
  struct State;

  Work() = default;  // done
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  bool done() const;
  // Returns once it is done; throws what the call would have thrown.
  void wait();

 private:
  std::shared_ptr<State> state_;
};

// Every rank of the group makes the same calls in the same order, from one thread at a time. Buffers are the caller's,
// of any alignment; `in` may equal `out`. A count is in elements. Sums of 16-bit types are accumulated in f32 and
// rounded once, in rank order, so every rank gets the same bits whatever the number of lanes, and by mesh or by
// broadcast. In a ring, too, every rank gets the same bits, but the order in which they are added is another. Errors:
// peer, timeout, mismatch (see error.h). After one, the group serves no further call.
//
// Calls that end in _async return at once; they and the others are served in the order in which they were made.
// Arguments that can never work are refused at once.
class Group {
 public:
  // Joins the job: returns once every pair of ranks is connected. Throws Error(timeout) naming the missing ranks.
  static std::shared_ptr<Group> connect(const Config& config);
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string host_of(int rank) const = 0;

  virtual void all_sum(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual void all_max(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual void all_min(const void* in, void* out, size_t count, Dtype dtype) = 0;
  // `in`: count elements; `out`: size() * count, in rank order.
  virtual void all_gather(const void* in, void* out, size_t count, Dtype dtype) = 0;
  // `in`: size() * count elements; `out`: count, this rank's part of the sum.
  virtual void sum_scatter(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual void broadcast(void* data, size_t count, Dtype dtype, int root) = 0;
  // Whatever the size, send returns once the other rank has called recv and the bytes are on their way: two ranks that
  // both send first are a mismatch, not a matter of luck.
  virtual void send(const void* data, size_t count, Dtype dtype, int to) = 0;
  virtual void recv(void* data, size_t count, Dtype dtype, int from) = 0;
  virtual void barrier() = 0;

  virtual Work all_sum_async(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual Work all_max_async(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual Work all_min_async(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual Work all_gather_async(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual Work sum_scatter_async(const void* in, void* out, size_t count, Dtype dtype) = 0;
  virtual Work broadcast_async(void* data, size_t count, Dtype dtype, int root) = 0;
  virtual Work send_async(const void* data, size_t count, Dtype dtype, int to) = 0;
  virtual Work recv_async(void* data, size_t count, Dtype dtype, int from) = 0;
  virtual Work barrier_async() = 0;

  // Every rank calls it. Those that give the same color become a group, ordered by key, then by rank in this group;
  // with a negative color, a rank gets none (null). The groups of a job share its lanes and cables: an error in one of
  // them ends the job, and the calls of all of them are in one order on each rank, from one thread at a time.
  virtual std::shared_ptr<Group> split(int color, int key) = 0;

  // Tells the other ranks why this one cannot go on; their pending and later calls throw Error(peer) with it. For a
  // failure outside a collective (bad data on one rank, say).
  virtual void abort(const std::string& reason) = 0;

  // Tells that this rank gets on though it calls nothing here (a layer, a block of a checkpoint): the others' timeout
  // runs from the last such moment. Any thread.
  virtual void advance() {}

  // The cables of this rank, by peer.
  virtual std::vector<CableTraffic> cables() const { return {}; }
  // Since the last call; all zero before the first, which turns it on.
  virtual Profile profile() { return {}; }
  // Of the calls since the last call of this; none before the first, which turns it on. While no call is under way.
  virtual std::vector<LaneSpan> lane_spans() { return {}; }
};

}  // namespace trunkline

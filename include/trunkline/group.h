// Group: the ranks of a job and the collectives between them. The whole public API of comm.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "trunkline/dtype.h"
#include "trunkline/error.h"

namespace trunkline {

// The values travel between ranks: never renumber.
enum class Algorithm : uint8_t { automatic = 0, mesh = 1, broadcast = 2 };

// Where a rank stands in its job and how it finds the others.
struct Config {
  int rank = 0;
  int size = 1;
  std::string coordinator;       // IP:PORT on which rank 0 listens
  std::optional<int> listen_fd;  // rank 0: a socket that already listens there, from the launcher
  std::string job_key;           // hex, shared by the ranks of one job; may be empty if all addresses are loopback
  std::chrono::milliseconds timeout{60'000};  // from the last progress
  int lanes = 0;                              // connections a peer; 0: chosen
  Algorithm algorithm = Algorithm::automatic;

  // From the environment (docs/environment.md). With no rank named there, a job of one rank. Throws Error(input) on a
  // half-set environment: a rank never goes on alone when it was meant to have company.
  static Config from_env();
};

// Every rank of the group makes the same calls in the same order, from one thread at a time. Buffers are the caller's,
// of any alignment; `in` may equal `out`. A count is in elements. Sums of 16-bit types are accumulated in f32 and
// rounded once, in rank order, so every rank gets the same bits whatever the number of lanes or the algorithm. Errors:
// peer, timeout, mismatch (see error.h). After one, the group serves no further call.
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

  // Tells the other ranks why this one cannot go on; their pending and later calls throw Error(peer) with it. For a
  // failure outside a collective (bad data on one rank, say).
  virtual void abort(const std::string& reason) = 0;

  // Tells that this rank gets on though it calls nothing here (a layer, a block of a checkpoint): the others' timeout
  // runs from the last such moment. Any thread.
  virtual void advance() {}
};

}  // namespace trunkline

// Collectives: the calls of a group, each checked, counted, cut into its lanes' shares, and given to the algorithm that
// serves it. The calls that it returns may be made when it is gone, while the job is there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/job.h"
#include "comm/ring.h"

namespace trunkline {

class Collectives {
 public:
  using Call = Calls::Call;

  Collectives(Job& job, std::shared_ptr<const Team> team, uint32_t group);

  size_t ranks() const { return team_->ranks.size(); }
  const Team& team() const { return *team_; }
  // Throws Error(input), naming the call, for a rank that the group does not have.
  void check_rank(const char* call, int rank) const;

  // Arguments are those of Group.
  Call all_reduce(Reduction reduction, const void* in, void* out, size_t count, Dtype dtype);
  Call all_gather(const void* in, void* out, size_t count, Dtype dtype);
  Call sum_scatter(const void* in, void* out, size_t count, Dtype dtype);
  Call broadcast(void* data, size_t count, Dtype dtype, int root);
  Call send(const void* data, size_t count, Dtype dtype, int to);
  Call receive(void* data, size_t count, Dtype dtype, int from);
  Call barrier();

 private:
  void find_ring(const Paths& paths);
  std::string pairs_text(const Paths& paths) const;
  void check_message(const char* call, size_t count, Dtype dtype) const;
  Operation collective(Operation::Kind kind, size_t count, Dtype dtype);
  Operation transfer(Operation::Kind kind, size_t count, Dtype dtype, int peer);
  template <typename F>
  Call call(const Operation& operation, size_t bytes, F f) const;

  Job& job_;
  const std::shared_ptr<const Team> team_;
  const uint32_t group_;
  std::shared_ptr<const RingAlgorithm> ring_;  // unless null, all collectives go over it
  size_t cables_ = 1;                          // the fewest of a pair
  std::string unserved_;                       // unless empty: why there can be no collectives
  uint64_t collectives_ = 0;
  std::vector<uint64_t> transfers_;  // by place
};

}  // namespace trunkline

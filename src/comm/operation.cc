#include "comm/operation.h"

#include <fmt/format.h>

namespace trunkline {
namespace {

std::string_view call_name(const Operation& operation) {
  switch (operation.kind) {
    case Operation::Kind::all_reduce:
      switch (operation.reduction) {
        case Reduction::sum: return "all_sum";
        case Reduction::max: return "all_max";
        case Reduction::min: return "all_min";
      }
      break;
    case Operation::Kind::all_gather: return "all_gather";
    case Operation::Kind::sum_scatter: return "sum_scatter";
    case Operation::Kind::broadcast: return "broadcast";
    case Operation::Kind::send: return "send";
    case Operation::Kind::receive: return "recv";
    case Operation::Kind::barrier: return "barrier";
  }
  return "an operation of another version";
}

}  // namespace

std::string_view name_of(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::automatic: return "auto";
    case Algorithm::mesh: return "mesh";
    case Algorithm::broadcast: return "broadcast";
    case Algorithm::ring: return "ring";
  }
  return "an algorithm of another version";
}

std::string Operation::text() const {
  std::string text(call_name(*this));
  const char* const rank = group == 0 ? "rank" : "place";
  if (kind == Kind::send) text += fmt::format(" to {} {}", rank, root);
  if (kind == Kind::receive || kind == Kind::broadcast) text += fmt::format(" from {} {}", rank, root);
  if (kind != Kind::barrier) text += fmt::format(" of {} {}", count, name_of(dtype));
  if (kind == Kind::all_reduce || (!pairwise() && algorithm == Algorithm::ring)) {
    text += fmt::format(" by {}", name_of(algorithm));
  }
  text += fmt::format(" ({} {}", pairwise() ? "transfer" : "operation", number);
  return text + (group == 0 ? ")" : fmt::format(" of group {})", group));
}

std::string disagreement(const std::string& one, const Operation& ones, const std::string& other,
                         const Operation& others) {
  return fmt::format("ranks disagree on an operation: {} called {}, {} called {}", one, ones.text(), other,
                     others.text());
}

Operation as_peers_call(const Operation& own, int place) {
  Operation expected = own;
  if (!own.pairwise()) return expected;
  expected.kind = own.kind == Operation::Kind::send ? Operation::Kind::receive : Operation::Kind::send;
  expected.root = place;
  return expected;
}

bool matches(const Operation& own, int place, const Operation& theirs, int peer) {
  return (!own.pairwise() || own.root == peer) && as_peers_call(own, place) == theirs;
}

}  // namespace trunkline

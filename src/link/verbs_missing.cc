// In place of verbs_trunks.cc where the verbs header is missing.
#include "base/fail.h"
#include "link/verbs_trunks.h"

namespace trunkline {

std::vector<LaneTrunks> connect_trunks(const TrunkOptions&, const Exchange&) {
  fail(
      ErrorKind::unsupported,
      "RDMA: this Trunkline was built without it, since its header was missing; build it with the SDK of macOS 26.2 or "
      "later, or use TCP");
}

}  // namespace trunkline

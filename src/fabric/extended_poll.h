// The calls of extended completion queues: ibv_start_poll and those that read the current completion.
#pragma once

#include <infiniband/verbs.h>

namespace trunkline {

void set_up_extended_poll(ibv_cq_ex& cq);

}  // namespace trunkline

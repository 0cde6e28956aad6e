// The calls by which a queue pair made with IBV_QP_INIT_ATTR_SEND_OPS_FLAGS is sent on: ibv_wr_start to
// ibv_wr_complete.
#pragma once

#include <infiniband/verbs.h>

namespace trunkline {

void set_up_extended_send(ibv_qp_ex& qp);

}  // namespace trunkline

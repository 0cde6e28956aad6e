#include "fabric/extended_poll.h"

#include <cerrno>

#include "fabric/completion.h"

namespace trunkline {
namespace {

// 0, or ENOENT for none.
int next(ibv_cq_ex* cq) {
  CompletionQueue& queue = CompletionQueue::of(cq);
  const int count = queue.poll(1, &queue.current);
  if (count < 0) return EIO;
  if (count == 0) return ENOENT;
  queue.current_ns = now_ns();
  cq->wr_id = queue.current.wr_id;
  cq->status = queue.current.status;
  return 0;
}

const ibv_wc& current(ibv_cq_ex* cq) { return CompletionQueue::of(cq).current; }

}  // namespace

void set_up_extended_poll(ibv_cq_ex& cq) {
  cq.start_poll = [](ibv_cq_ex* queue, ibv_poll_cq_attr* attributes) {
    return attributes != nullptr && attributes->comp_mask != 0 ? EINVAL : next(queue);
  };
  cq.next_poll = next;
  cq.end_poll = [](ibv_cq_ex*) {};
  cq.read_opcode = [](ibv_cq_ex* queue) { return current(queue).opcode; };
  cq.read_vendor_err = [](ibv_cq_ex* queue) { return current(queue).vendor_err; };
  cq.read_byte_len = [](ibv_cq_ex* queue) { return current(queue).byte_len; };
  cq.read_imm_data = [](ibv_cq_ex* queue) { return current(queue).imm_data; };
  cq.read_qp_num = [](ibv_cq_ex* queue) { return current(queue).qp_num; };
  cq.read_src_qp = [](ibv_cq_ex* queue) { return current(queue).src_qp; };
  cq.read_wc_flags = [](ibv_cq_ex* queue) { return current(queue).wc_flags; };
  cq.read_slid = [](ibv_cq_ex*) { return uint32_t{0}; };
  cq.read_sl = [](ibv_cq_ex*) { return uint8_t{0}; };
  cq.read_dlid_path_bits = [](ibv_cq_ex*) { return uint8_t{0}; };
  cq.read_completion_ts = [](ibv_cq_ex* queue) { return CompletionQueue::of(queue).current_ns; };
}

}  // namespace trunkline

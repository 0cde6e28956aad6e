#include "fabric/extended_send.h"

#include <cerrno>

#include "fabric/queue_pair.h"

namespace trunkline {
namespace {

// Work requests are gathered between start and complete and then posted as one list. A program starts and completes
// from one thread at a time.
SendBatch& batch_of(ibv_qp_ex* qp) { return QueuePair::of(qp).batch; }

void drop(ibv_qp_ex* qp) {
  batch_of(qp).entries.clear();
  batch_of(qp).error = 0;
}

void begin(ibv_qp_ex* qp, ibv_wr_opcode opcode, __be32 immediate) {
  SendBatch::Entry& entry = batch_of(qp).entries.emplace_back();
  entry.request.wr_id = qp->wr_id;
  entry.request.send_flags = qp->wr_flags;
  entry.request.opcode = opcode;
  entry.request.imm_data = immediate;
}

void set_list(ibv_qp_ex* qp, size_t count, const ibv_sge* list) {
  SendBatch& batch = batch_of(qp);
  if (batch.entries.empty() || count > kMaxScatterEntries) {
    batch.error = EINVAL;
    return;
  }
  batch.entries.back().list = ScatterList(list, static_cast<int>(count));
}

int complete(ibv_qp_ex* qp) {
  SendBatch& batch = batch_of(qp);
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    SendBatch::Entry& entry = batch.entries[i];
    entry.request.sg_list = entry.list.entries;
    entry.request.num_sge = entry.list.count;
    entry.request.next = i + 1 < batch.entries.size() ? &batch.entries[i + 1].request : nullptr;
  }
  int error = batch.error;
  // All or nothing: none is posted unless there is room for all.
  if (error == 0 && !batch.entries.empty()) {
    ibv_send_wr* bad = nullptr;
    QueuePair& pair = QueuePair::of(qp);
    error = pair.send_room() < batch.entries.size() ? ENOMEM : pair.post_send(&batch.entries.front().request, &bad);
  }
  drop(qp);
  return error;
}

}  // namespace

void set_up_extended_send(ibv_qp_ex& qp) {
  qp.wr_start = drop;
  qp.wr_send = [](ibv_qp_ex* pair) { begin(pair, IBV_WR_SEND, 0); };
  qp.wr_send_imm = [](ibv_qp_ex* pair, __be32 immediate) { begin(pair, IBV_WR_SEND_WITH_IMM, immediate); };
  qp.wr_set_sge = [](ibv_qp_ex* pair, uint32_t lkey, uint64_t address, uint32_t length) {
    const ibv_sge entry{address, length, lkey};
    set_list(pair, 1, &entry);
  };
  qp.wr_set_sge_list = set_list;
  qp.wr_set_inline_data = [](ibv_qp_ex* pair, void* address, size_t length) {
    const ibv_sge entry{reinterpret_cast<uint64_t>(address), static_cast<uint32_t>(length), 0};
    set_list(pair, 1, &entry);
    if (!batch_of(pair).entries.empty()) batch_of(pair).entries.back().request.send_flags |= IBV_SEND_INLINE;
  };
  qp.wr_set_inline_data_list = [](ibv_qp_ex* pair, size_t count, const ibv_data_buf* buffers) {
    if (count > kMaxScatterEntries) {
      batch_of(pair).error = EINVAL;
      return;
    }
    ibv_sge list[kMaxScatterEntries];
    for (size_t i = 0; i < count; ++i) {
      list[i] = {reinterpret_cast<uint64_t>(buffers[i].addr), static_cast<uint32_t>(buffers[i].length), 0};
    }
    set_list(pair, count, list);
    if (!batch_of(pair).entries.empty()) batch_of(pair).entries.back().request.send_flags |= IBV_SEND_INLINE;
  };
  qp.wr_complete = complete;
  qp.wr_abort = drop;
}

}  // namespace trunkline

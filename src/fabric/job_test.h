// For tests: the ranks of a job as forked processes on one fabric, and the usual way from an open device to a connected
// queue pair.
#pragma once

#include <infiniband/verbs.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

// In a rank: ends it with exit code 1, saying what does not hold.
#define REQUIRE(condition)                                                                                       \
  do {                                                                                                           \
    if (!(condition)) {                                                                                          \
      std::fprintf(stderr, "%s:%d: rank does not find: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
      ::_exit(1);                                                                                                \
    }                                                                                                            \
  } while (false)

namespace trunkline::test {

using namespace std::chrono_literals;

// What ranks tell each other beside the fabric.
struct Board {
  static constexpr int kRanks = 8, kEntries = 64;
  struct Entry {
    std::atomic<uint32_t> queue_pair;
    ibv_gid gid;
  };
  Entry entries[kRanks][kEntries];
  std::atomic<int> arrived;
  std::atomic<uint64_t> numbers[16];  // for the test's own use
};

// Gives up after 20 s.
inline void wait_for(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + 20s;
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(50us);
  }
}

class Job {
 public:
  using Program = std::function<void(int rank)>;

  Job(int ranks, const std::string& wiring) : ranks_(ranks) {
    file_ = ::memfd_create("fabric", 0);
    if (::write(file_, wiring.data(), wiring.size()) != static_cast<ssize_t>(wiring.size())) std::abort();
    void* shared = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    board = new (shared) Board{};
  }
  ~Job() {
    for (const pid_t pid : pids_) stop(pid);
    ::munmap(board, sizeof *board);
    ::close(file_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  // One more process for this rank; its exit code is 0 unless a REQUIRE fails in it.
  pid_t start(int rank, const Program& program) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setenv("TRUNKLINE_FABRIC_FD", std::to_string(file_).c_str(), 1);
      ::setenv("MLX_RANK", std::to_string(rank).c_str(), 1);
      program(rank);
      ::_exit(0);
    }
    pids_.push_back(pid);
    return pid;
  }

  // The exit code of a process: 128 + signal when one ended it, -1 if it has not ended by the deadline.
  int wait(pid_t pid, std::chrono::milliseconds patience = 60s) {
    const auto end = std::chrono::steady_clock::now() + patience;
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (std::chrono::steady_clock::now() > end) return -1;
      std::this_thread::sleep_for(1ms);
    }
    std::erase(pids_, pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

  void stop(pid_t pid) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }

  // Every rank runs `program`; the first exit code that is not 0.
  int run(const Program& program) {
    std::vector<pid_t> started;
    for (int rank = 0; rank < ranks_; ++rank) started.push_back(start(rank, program));
    int code = 0;
    for (const pid_t pid : started) {
      const int own = wait(pid);
      if (code == 0) code = own;
    }
    return code;
  }

  // In a rank: returns once all have called it as often.
  void barrier() {
    const int round = board->arrived.fetch_add(1) / ranks_ + 1;
    wait_for([&] { return board->arrived.load() >= round * ranks_; });
  }

  int file() const { return file_; }
  Board* board;

 private:
  int ranks_;
  int file_;
  std::vector<pid_t> pids_;
};

// A device opened by name, with all that one queue pair after another may share.
struct OpenDevice {
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;

  explicit OpenDevice(const std::string& name) {
    ibv_device** list = ibv_get_device_list(nullptr);
    REQUIRE(list != nullptr);
    for (ibv_device** device = list; *device != nullptr; ++device) {
      if (name == ibv_get_device_name(*device)) context = ibv_open_device(*device);
    }
    ibv_free_device_list(list);
    REQUIRE(context != nullptr);
    pd = ibv_alloc_pd(context);
    REQUIRE(pd != nullptr);
  }

  // The index of the first usable GID, or -1.
  int find_gid(ibv_gid& gid) const {
    for (int index = 0; index < 16; ++index) {
      REQUIRE(ibv_query_gid(context, 1, index, &gid) == 0);
      static constexpr uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
      if (std::memcmp(gid.raw, kMapped, sizeof kMapped) == 0) return index;
    }
    return -1;
  }
};

inline ibv_qp_attr init_attributes() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_INIT;
  attributes.port_num = 1;
  attributes.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
  return attributes;
}
inline constexpr int kInitMask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;

inline ibv_qp_attr receive_attributes(int gid_index, const ibv_gid& peer, uint32_t queue_pair) {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTR;
  attributes.path_mtu = IBV_MTU_1024;
  attributes.dest_qp_num = queue_pair;
  attributes.rq_psn = 7;
  attributes.ah_attr.is_global = 1;
  attributes.ah_attr.port_num = 1;
  attributes.ah_attr.grh.dgid = peer;
  attributes.ah_attr.grh.sgid_index = static_cast<uint8_t>(gid_index);
  attributes.ah_attr.grh.hop_limit = 1;
  return attributes;
}
inline constexpr int kReceiveMask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;

inline ibv_qp_attr send_attributes() {
  ibv_qp_attr attributes{};
  attributes.qp_state = IBV_QPS_RTS;
  attributes.sq_psn = 7;
  return attributes;
}
inline constexpr int kSendMask = IBV_QP_STATE | IBV_QP_SQ_PSN;

// A queue pair with one completion queue and one registered buffer, cut into slots of `slot_bytes`.
class Endpoint {
 public:
  Endpoint(OpenDevice& device, size_t slot_bytes, size_t slots, uint32_t depth = 63, bool extended = false)
      : device_(device), slot_bytes_(slot_bytes) {
    cq = ibv_create_cq(device.context, 2 * static_cast<int>(depth), nullptr, nullptr, 0);
    REQUIRE(cq != nullptr);
    ibv_qp_init_attr_ex attributes{};
    attributes.send_cq = attributes.recv_cq = cq;
    attributes.qp_type = IBV_QPT_UC;
    attributes.cap.max_send_wr = attributes.cap.max_recv_wr = depth;
    attributes.cap.max_send_sge = attributes.cap.max_recv_sge = 1;
    attributes.comp_mask = IBV_QP_INIT_ATTR_PD;
    attributes.pd = device.pd;
    if (extended) {
      attributes.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
      attributes.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;
    }
    qp = ibv_create_qp_ex(device.context, &attributes);
    REQUIRE(qp != nullptr);
    ibv_qp_attr init = init_attributes();
    REQUIRE(ibv_modify_qp(qp, &init, kInitMask) == 0);
    const size_t bytes = (slot_bytes * slots + 4095) / 4096 * 4096;
    memory_ = static_cast<std::byte*>(std::aligned_alloc(4096, std::max<size_t>(bytes, 4096)));
    std::memset(memory_, 0, bytes);
    mr = ibv_reg_mr(device.pd, memory_, std::max<size_t>(bytes, 4096), IBV_ACCESS_LOCAL_WRITE);
    REQUIRE(mr != nullptr);
  }

  // Connects to the endpoint that `peer` registers under the same entry.
  void connect(Job& job, int rank, int peer, int entry = 0) {
    ibv_gid gid;
    const int index = device_.find_gid(gid);
    REQUIRE(index >= 0);
    Board::Entry& own = job.board->entries[rank][entry];
    own.gid = gid;
    own.queue_pair = qp->qp_num;
    Board::Entry& other = job.board->entries[peer][entry];
    wait_for([&] { return other.queue_pair != 0; });
    ibv_qp_attr receive = receive_attributes(index, other.gid, other.queue_pair);
    REQUIRE(ibv_modify_qp(qp, &receive, kReceiveMask) == 0);
    ibv_qp_attr send = send_attributes();
    REQUIRE(ibv_modify_qp(qp, &send, kSendMask) == 0);
  }

  std::byte* slot(size_t index) { return memory_ + index * slot_bytes_; }

  // 0, or the errno of the call.
  int receive(size_t index, uint64_t id) {
    ibv_sge sge{reinterpret_cast<uint64_t>(slot(index)), static_cast<uint32_t>(slot_bytes_), mr->lkey};
    ibv_recv_wr request{};
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = 1;
    ibv_recv_wr* bad = nullptr;
    return ibv_post_recv(qp, &request, &bad);
  }

  int send(size_t index, size_t bytes, uint64_t id, unsigned flags = IBV_SEND_SIGNALED) {
    ibv_sge sge{reinterpret_cast<uint64_t>(slot(index)), static_cast<uint32_t>(bytes), mr->lkey};
    ibv_send_wr request{};
    request.wr_id = id;
    request.sg_list = &sge;
    request.num_sge = 1;
    request.opcode = IBV_WR_SEND;
    request.send_flags = flags;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &request, &bad);
  }

  // The next completion, waited for.
  ibv_wc next() {
    ibv_wc completion{};
    wait_for([&] {
      const int count = ibv_poll_cq(cq, 1, &completion);
      REQUIRE(count >= 0);
      return count == 1;
    });
    return completion;
  }

  // False if none comes in that time.
  bool next_within(std::chrono::milliseconds patience, ibv_wc& completion) {
    const auto end = std::chrono::steady_clock::now() + patience;
    do {
      const int count = ibv_poll_cq(cq, 1, &completion);
      REQUIRE(count >= 0);
      if (count == 1) return true;
      std::this_thread::sleep_for(50us);
    } while (std::chrono::steady_clock::now() < end);
    return false;
  }

  void destroy() {
    REQUIRE(ibv_destroy_qp(qp) == 0);
    REQUIRE(ibv_destroy_cq(cq) == 0);
    REQUIRE(ibv_dereg_mr(mr) == 0);
    std::free(memory_);
  }

  ibv_cq* cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_mr* mr = nullptr;

 private:
  OpenDevice& device_;
  size_t slot_bytes_;
  std::byte* memory_ = nullptr;
};

}  // namespace trunkline::test

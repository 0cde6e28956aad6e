// The library as a program meets it that was written for Macs: opened at run time, every function looked up by name,
// the rest through the context's table of operations.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include "cluster/cables.h"
#include "fabric/job_test.h"

namespace trunkline::test {
namespace {

constexpr const char* kLibrary = TRUNKLINE_BINARY_DIR "/libtrunkline_fabric.so";

template <typename Function>
Function* find(void* library, const char* name, Function*) {
  auto* function = reinterpret_cast<Function*>(::dlsym(library, name));
  if (function == nullptr) std::fprintf(stderr, "no %s\n", name);
  REQUIRE(function != nullptr);
  return function;
}
#define FIND(name) auto* name = find(library, "ibv_" #name, static_cast<decltype(ibv_##name)*>(nullptr))

#undef ibv_query_port
#undef ibv_reg_mr

void exchange(Job& job, int rank) {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) std::fprintf(stderr, "%s\n", ::dlerror());
  REQUIRE(library != nullptr);
  FIND(get_device_list);
  FIND(get_device_name);
  FIND(free_device_list);
  FIND(open_device);
  FIND(close_device);
  FIND(alloc_pd);
  FIND(dealloc_pd);
  FIND(create_qp);
  FIND(destroy_qp);
  FIND(create_cq);
  FIND(destroy_cq);
  FIND(query_port);
  FIND(query_gid);
  FIND(modify_qp);
  FIND(reg_mr);
  FIND(dereg_mr);

  int count = 0;
  ibv_device** devices = get_device_list(&count);
  REQUIRE(count == 1 && std::strcmp(get_device_name(devices[0]), "rdma_en2") == 0);
  ibv_context* context = open_device(devices[0]);
  free_device_list(devices);
  ibv_port_attr port{};
  REQUIRE(query_port(context, 1, reinterpret_cast<_compat_ibv_port_attr*>(&port)) == 0);
  REQUIRE(port.state == IBV_PORT_ACTIVE && port.gid_tbl_len == 16);
  Board::Entry& own = job.board->entries[rank][0];
  Board::Entry& other = job.board->entries[1 - rank][0];
  REQUIRE(query_gid(context, 1, 1, &own.gid) == 0);
  ibv_pd* pd = alloc_pd(context);
  ibv_cq* cq = create_cq(context, 64, nullptr, nullptr, 0);
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = cq;
  attributes.cap = {32, 32, 1, 1, 0};
  attributes.qp_type = IBV_QPT_UC;
  ibv_qp* qp = create_qp(pd, &attributes);
  REQUIRE(qp != nullptr);
  static char memory[64];
  ibv_mr* mr =
      reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
  REQUIRE(mr != nullptr);
  own.queue_pair = qp->qp_num;
  wait_for([&] { return other.queue_pair != 0; });
  ibv_qp_attr init = init_attributes(), receive = receive_attributes(1, other.gid, other.queue_pair),
              send = send_attributes();
  REQUIRE(modify_qp(qp, &init, kInitMask) == 0);
  REQUIRE(modify_qp(qp, &receive, kReceiveMask) == 0);
  REQUIRE(modify_qp(qp, &send, kSendMask) == 0);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory), 64, mr->lkey};
  ibv_recv_wr receive_request{.wr_id = 1, .next = nullptr, .sg_list = &sge, .num_sge = 1};
  ibv_recv_wr* bad_receive = nullptr;
  if (rank == 1) REQUIRE(qp->context->ops.post_recv(qp, &receive_request, &bad_receive) == 0);
  job.barrier();
  ibv_send_wr send_request{};
  send_request.sg_list = &sge;
  send_request.num_sge = 1;
  send_request.opcode = IBV_WR_SEND;
  send_request.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* bad_send = nullptr;
  if (rank == 0) {
    std::strcpy(memory, "by way of the table");
    REQUIRE(qp->context->ops.post_send(qp, &send_request, &bad_send) == 0);
  }
  ibv_wc completion;
  wait_for([&] { return cq->context->ops.poll_cq(cq, 1, &completion) == 1; });
  REQUIRE(completion.status == IBV_WC_SUCCESS && std::strcmp(memory, "by way of the table") == 0);
  job.barrier();
  REQUIRE(destroy_qp(qp) == 0 && destroy_cq(cq) == 0 && dereg_mr(mr) == 0 && dealloc_pd(pd) == 0);
  REQUIRE(close_device(context) == 0);
}

TEST(Abi, AProgramForMacsRuns) {
  Job job(2, to_json(wiring_from_spec("1", 2)));
  EXPECT_EQ(job.run([&](int rank) { exchange(job, rank); }), 0);
}

TEST(Abi, NamesThatOnlyProvidersBindFailWithEnosys) {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << ::dlerror();
  for (const char* name : {"ibv_cmd_create_qp_ex", "ibv_cmd_reg_dmabuf_mr", "execute_ioctl"}) {
    auto* function = reinterpret_cast<int (*)()>(::dlvsym(library, name, "IBVERBS_PRIVATE_34"));
    ASSERT_NE(function, nullptr) << name;
    EXPECT_EQ(function(), ENOSYS);
  }
  EXPECT_EQ(::dlsym(library, "_ZN9trunkline6now_nsEv"), nullptr) << "what is inside stays there";
}

}  // namespace
}  // namespace trunkline::test

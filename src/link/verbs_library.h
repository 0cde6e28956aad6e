// The RDMA library, opened at run time: Apple's librdma.dylib, Linux's libibverbs.so.1, or emulated cables, which stand
// in for the latter. Only what Apple's has is used. Posting and polling are no symbols of it: they go through a
// context's table of operations, as the header's inline functions do.
#pragma once

#include <infiniband/verbs.h>

#include <string>

namespace trunkline {

struct VerbsLibrary {
  ibv_device** (*get_device_list)(int* count);
  void (*free_device_list)(ibv_device** list);
  const char* (*get_device_name)(ibv_device* device);
  ibv_context* (*open_device)(ibv_device* device);
  int (*close_device)(ibv_context* context);
  int (*query_device)(ibv_context* context, ibv_device_attr* attributes);  // null where the library has none
  // The header has a macro of this name for a longer struct; the symbol fills its first fields, up to `link_layer`.
  int (*query_port)(ibv_context* context, uint8_t port, ibv_port_attr* attributes);
  int (*query_gid)(ibv_context* context, uint8_t port, int index, ibv_gid* gid);
  ibv_pd* (*alloc_pd)(ibv_context* context);
  int (*dealloc_pd)(ibv_pd* pd);
  ibv_mr* (*reg_mr)(ibv_pd* pd, void* address, size_t bytes, int access);
  int (*dereg_mr)(ibv_mr* mr);
  ibv_cq* (*create_cq)(ibv_context* context, int entries, void* user, struct ibv_comp_channel* channel, int vector);
  int (*destroy_cq)(ibv_cq* cq);
  ibv_qp* (*create_qp)(ibv_pd* pd, ibv_qp_init_attr* attributes);
  int (*destroy_qp)(ibv_qp* qp);
  int (*modify_qp)(ibv_qp* qp, ibv_qp_attr* attributes, int mask);

  // Throws Error(system) saying what to install. It stays open until the process ends. An empty path: the system's.
  static VerbsLibrary open(const std::string& path = {});
};

}  // namespace trunkline

// What provider libraries bind of version IBVERBS_PRIVATE_34 when they are loaded: libmlx5, libefa and librdmacm of
// Debian 12, which perftest links. They drive hardware that a rank on the fabric has not got, so each of these fails
// with ENOSYS.
#include <cerrno>

#define REFUSE(name) \
  int name() {       \
    errno = ENOSYS;  \
    return ENOSYS;   \
  }
#define REFUSE_VOID(name) \
  void name() { errno = ENOSYS; }

extern "C" {

bool verbs_allow_disassociate_destroy = false;

// Providers call it in their constructors, to offer themselves.
void verbs_register_driver_34() {}

void* _verbs_init_and_alloc_context() {
  errno = ENOSYS;
  return nullptr;
}
void* verbs_open_device() {
  errno = ENOSYS;
  return nullptr;
}
REFUSE_VOID(verbs_init_cq)
REFUSE_VOID(verbs_set_ops)
REFUSE_VOID(verbs_uninit_context)
REFUSE_VOID(__verbs_log)  // NOLINT(bugprone-reserved-identifier): its name

REFUSE(execute_ioctl)
REFUSE(ibv_cmd_advise_mr)
REFUSE(ibv_cmd_alloc_dm)
REFUSE(ibv_cmd_alloc_mw)
REFUSE(ibv_cmd_alloc_pd)
REFUSE(ibv_cmd_attach_mcast)
REFUSE(ibv_cmd_close_xrcd)
REFUSE(ibv_cmd_create_ah)
REFUSE(ibv_cmd_create_counters)
REFUSE(ibv_cmd_create_cq_ex)
REFUSE(ibv_cmd_create_flow)
REFUSE(ibv_cmd_create_flow_action_esp)
REFUSE(ibv_cmd_create_qp_ex)
REFUSE(ibv_cmd_create_qp_ex2)
REFUSE(ibv_cmd_create_rwq_ind_table)
REFUSE(ibv_cmd_create_srq)
REFUSE(ibv_cmd_create_srq_ex)
REFUSE(ibv_cmd_create_wq)
REFUSE(ibv_cmd_dealloc_mw)
REFUSE(ibv_cmd_dealloc_pd)
REFUSE(ibv_cmd_dereg_mr)
REFUSE(ibv_cmd_destroy_ah)
REFUSE(ibv_cmd_destroy_counters)
REFUSE(ibv_cmd_destroy_cq)
REFUSE(ibv_cmd_destroy_flow)
REFUSE(ibv_cmd_destroy_flow_action)
REFUSE(ibv_cmd_destroy_qp)
REFUSE(ibv_cmd_destroy_rwq_ind_table)
REFUSE(ibv_cmd_destroy_srq)
REFUSE(ibv_cmd_destroy_wq)
REFUSE(ibv_cmd_detach_mcast)
REFUSE(ibv_cmd_free_dm)
REFUSE(ibv_cmd_get_context)
REFUSE(ibv_cmd_modify_cq)
REFUSE(ibv_cmd_modify_flow_action_esp)
REFUSE(ibv_cmd_modify_qp)
REFUSE(ibv_cmd_modify_qp_ex)
REFUSE(ibv_cmd_modify_srq)
REFUSE(ibv_cmd_modify_wq)
REFUSE(ibv_cmd_open_qp)
REFUSE(ibv_cmd_open_xrcd)
REFUSE(ibv_cmd_query_context)
REFUSE(ibv_cmd_query_device_any)
REFUSE(ibv_cmd_query_mr)
REFUSE(ibv_cmd_query_port)
REFUSE(ibv_cmd_query_qp)
REFUSE(ibv_cmd_query_srq)
REFUSE(ibv_cmd_read_counters)
REFUSE(ibv_cmd_reg_dm_mr)
REFUSE(ibv_cmd_reg_dmabuf_mr)
REFUSE(ibv_cmd_reg_mr)
REFUSE(ibv_cmd_rereg_mr)
REFUSE(ibv_cmd_resize_cq)

}  // extern "C"

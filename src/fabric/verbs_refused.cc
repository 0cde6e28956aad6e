// The verbs entry points for what RDMA over Thunderbolt has not: they say so.
#include <infiniband/verbs.h>

#include <cerrno>

namespace {

struct Refusal {  // NOLINTBEGIN(google-explicit-constructor): what it is for
  operator int() const {
    errno = EOPNOTSUPP;
    return EOPNOTSUPP;
  }
  template <typename T>
  operator T*() const {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  // NOLINTEND(google-explicit-constructor)
};
constexpr Refusal kRefused;

}  // namespace

struct ibv_kern_path_rec;
struct ibv_sa_path_rec;
struct ibv_kern_ah_attr;
struct ibv_kern_qp_attr;

extern "C" {

ibv_ah* ibv_create_ah(ibv_pd*, ibv_ah_attr*) { return kRefused; }
ibv_ah* ibv_create_ah_from_wc(ibv_pd*, ibv_wc*, ibv_grh*, uint8_t) { return kRefused; }
int ibv_init_ah_from_wc(ibv_context*, uint8_t, ibv_wc*, ibv_grh*, ibv_ah_attr*) { return kRefused; }
int ibv_destroy_ah(ibv_ah*) { return kRefused; }
int ibv_attach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return kRefused; }
int ibv_detach_mcast(ibv_qp*, const ibv_gid*, uint16_t) { return kRefused; }
int ibv_resolve_eth_l2_from_gid(ibv_context*, ibv_ah_attr*, uint8_t*, uint16_t*) { return kRefused; }

ibv_srq* ibv_create_srq(ibv_pd*, ibv_srq_init_attr*) { return kRefused; }
int ibv_modify_srq(ibv_srq*, ibv_srq_attr*, int) { return kRefused; }
int ibv_query_srq(ibv_srq*, ibv_srq_attr*) { return kRefused; }
int ibv_destroy_srq(ibv_srq*) { return kRefused; }

int ibv_rereg_mr(ibv_mr*, int, ibv_pd*, void*, size_t, int) { return kRefused; }
ibv_mr* ibv_reg_dmabuf_mr(ibv_pd*, uint64_t, size_t, uint64_t, int, int) { return kRefused; }

ibv_context* ibv_import_device(int) { return kRefused; }
ibv_pd* ibv_import_pd(ibv_context*, uint32_t) { return kRefused; }
void ibv_unimport_pd(ibv_pd*) {}
ibv_mr* ibv_import_mr(ibv_pd*, uint32_t) { return kRefused; }
void ibv_unimport_mr(ibv_mr*) {}
ibv_dm* ibv_import_dm(ibv_context*, uint32_t) { return kRefused; }
void ibv_unimport_dm(ibv_dm*) {}

int ibv_set_ece(ibv_qp*, ibv_ece*) { return kRefused; }
int ibv_query_ece(ibv_qp*, ibv_ece*) { return kRefused; }

// There is no such directory for an emulated device: nothing is read.
const char* ibv_get_sysfs_path() { return "/sys"; }
int ibv_read_sysfs_file(const char*, const char*, char*, size_t) {
  errno = ENOENT;
  return -1;
}

// librdmacm's, which finds no device to use them on.
void ibv_copy_path_rec_from_kern(ibv_sa_path_rec*, ibv_kern_path_rec*) { errno = ENOSYS; }
void ibv_copy_path_rec_to_kern(ibv_kern_path_rec*, ibv_sa_path_rec*) { errno = ENOSYS; }
void ibv_copy_ah_attr_from_kern(ibv_ah_attr*, ibv_kern_ah_attr*) { errno = ENOSYS; }
void ibv_copy_qp_attr_from_kern(ibv_qp_attr*, ibv_kern_qp_attr*) { errno = ENOSYS; }

}  // extern "C"

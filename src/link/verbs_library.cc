#include "link/verbs_library.h"

#include <dlfcn.h>

#include "base/fail.h"

namespace trunkline {
namespace {

#ifdef __APPLE__
constexpr const char* kSystemLibrary = "librdma.dylib";
constexpr const char* kAdvice = "it is part of macOS 26.2 and later";
#else
constexpr const char* kSystemLibrary = "libibverbs.so.1";
constexpr const char* kAdvice = "install it (Debian: libibverbs1), or start the job with `trunkline launch --cables`";
#endif

std::string last_error() {
  const char* text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

}  // namespace

VerbsLibrary VerbsLibrary::open(const std::string& path) {
  const std::string name = path.empty() ? kSystemLibrary : path;
  void* const handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) fail(ErrorKind::system, "RDMA library {}: {}; {}", name, last_error(), kAdvice);
  VerbsLibrary library{};
  const auto find = [&](const char* symbol, auto& function, bool required = true) {
    void* const address = ::dlsym(handle, symbol);
    if (address == nullptr && required) fail(ErrorKind::system, "RDMA library {}: {}; {}", name, last_error(), kAdvice);
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(address);
  };
  find("ibv_get_device_list", library.get_device_list);
  find("ibv_free_device_list", library.free_device_list);
  find("ibv_get_device_name", library.get_device_name);
  find("ibv_open_device", library.open_device);
  find("ibv_close_device", library.close_device);
  find("ibv_query_device", library.query_device, false);
  find("ibv_query_port", library.query_port);
  find("ibv_query_gid", library.query_gid);
  find("ibv_alloc_pd", library.alloc_pd);
  find("ibv_dealloc_pd", library.dealloc_pd);
  find("ibv_reg_mr", library.reg_mr);
  find("ibv_dereg_mr", library.dereg_mr);
  find("ibv_create_cq", library.create_cq);
  find("ibv_destroy_cq", library.destroy_cq);
  find("ibv_create_qp", library.create_qp);
  find("ibv_destroy_qp", library.destroy_qp);
  find("ibv_modify_qp", library.modify_qp);
  return library;
}

}  // namespace trunkline

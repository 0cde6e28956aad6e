#include "base/blas.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>
#include <string_view>

namespace trunkline {

#ifdef __APPLE__
std::string describe_blas() { return "Accelerate"; }
#else
namespace {

template <typename Function>
Function* find_symbol(const std::string& name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_DEFAULT, name.c_str()));
}

// OpenBLAS's own account of itself; its names begin with `prefix`. Empty if there is none.
std::string describe_openblas(const std::string& prefix, const std::string& origin) {
  const auto config = find_symbol<char*()>(prefix + "openblas_get_config");
  const auto core = find_symbol<char*()>(prefix + "openblas_get_corename");
  const auto threads = find_symbol<int()>(prefix + "openblas_get_num_threads");
  if (config == nullptr || core == nullptr || threads == nullptr) return {};
  // "OpenBLAS 0.3.34 NO_LAPACKE DYNAMIC_ARCH ...": the first two words.
  const std::string_view text = config();
  const size_t end = text.find(' ', text.find(' ') + 1);
  return fmt::format("{} ({}, core {}, {} thread{})", text.substr(0, end), origin, core(), threads(),
                     threads() == 1 ? "" : "s");
}

}  // namespace

// By the library that cblas_sgemm comes from: libmlx binds that name in the same order as dlsym finds it.
std::string describe_blas() {
  Dl_info info{};
  void* const symbol = ::dlsym(RTLD_DEFAULT, "cblas_sgemm");
  if (symbol == nullptr || ::dladdr(symbol, &info) == 0 || info.dli_fname == nullptr) return "unknown";
  const std::string library = std::filesystem::path(info.dli_fname).filename();
  const bool forwarded = library.starts_with("libtrunkline_blas");
  const std::string openblas =
      forwarded ? describe_openblas("scipy_", "scipy-openblas32") : describe_openblas("", library);
  return openblas.empty() ? library : openblas;
}
#endif

}  // namespace trunkline

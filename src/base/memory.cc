#include "base/memory.h"

#ifdef __linux__
#include <dlfcn.h>
#endif

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#ifdef __GLIBC__
#include <malloc.h>
#endif
#ifdef __APPLE__
#include <mach/mach.h>
#else
#include <fstream>
#endif

namespace trunkline {

void keep_freed_memory() {
#ifdef __GLIBC__
  ::mallopt(M_MMAP_MAX, 0);         // no blocks of their own
  ::mallopt(M_TRIM_THRESHOLD, -1);  // nothing at the end is given back
#endif
}

int64_t machine_memory() {
  const int64_t whole = int64_t{::sysconf(_SC_PHYS_PAGES)} * ::sysconf(_SC_PAGESIZE);
#ifndef __APPLE__
  int64_t group = 0;  // "max" where there is no limit: no number
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> group && group > 0) return std::min(whole, group);
#endif
  return whole;
}

namespace {

// The system counts both by threads, and adds them up at other times: what is resident now was so once.
ProcessMemory with_peak(ProcessMemory memory) {
  static std::atomic<int64_t> most = 0;
  int64_t before = most.load();
  while (before < std::max(memory.now, memory.peak) &&
         !most.compare_exchange_weak(before, std::max(memory.now, memory.peak))) {
  }
  memory.peak = most.load();
  return memory;
}

}  // namespace

ProcessMemory process_memory() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
#ifdef __APPLE__
  ProcessMemory memory{.now = 0, .peak = usage.ru_maxrss};  // bytes there
  task_vm_info_data_t info{};
  mach_msg_type_number_t count = TASK_VM_INFO_COUNT;
  if (task_info(mach_task_self(), TASK_VM_INFO, reinterpret_cast<task_info_t>(&info), &count) == KERN_SUCCESS) {
    memory.now = static_cast<int64_t>(info.phys_footprint);
  }
  return with_peak(memory);
#else
  int64_t total_pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> total_pages >> resident_pages;
  return with_peak({.now = resident_pages * ::sysconf(_SC_PAGESIZE), .peak = int64_t{1024} * usage.ru_maxrss});
#endif
}

// MLX sets nothing of the pool and brings no runtime library to do it with, so the driver that it has loaded is asked.
bool keep_in_cuda_pool(int device, uint64_t bytes) {
#ifdef __linux__
  void* const driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) return false;
  using Pool = void*;
  const auto default_pool = reinterpret_cast<int (*)(Pool*, int)>(dlsym(driver, "cuDeviceGetDefaultMemPool"));
  const auto set = reinterpret_cast<int (*)(Pool, int, void*)>(dlsym(driver, "cuMemPoolSetAttribute"));
  constexpr int kReleaseThreshold = 4;  // CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
  Pool pool = nullptr;
  const bool done = default_pool != nullptr && set != nullptr && default_pool(&pool, device) == 0 &&
                    set(pool, kReleaseThreshold, &bytes) == 0;
  dlclose(driver);
  return done;
#else
  static_cast<void>(device);
  static_cast<void>(bytes);
  return false;
#endif
}

}  // namespace trunkline

#include "model/backend.h"

#include <fmt/format.h>
#include <mlx/backend/cuda/cuda.h>
#include <mlx/device.h>
#include <mlx/mlx.h>
#include <mlx/version.h>

#include <cstdlib>
#include <initializer_list>

#include "base/blas.h"
#include "base/log.h"
#include "base/memory.h"

namespace trunkline {
namespace {

std::string describe_device() {
  const mlx::core::Device device = mlx::core::default_device();
  if (device == mlx::core::Device::cpu) return "cpu";
  const auto& properties = mlx::core::device_info(device);
  const auto name = properties.find("device_name");
  if (name == properties.end() || !std::holds_alternative<std::string>(name->second)) return "gpu";
  return fmt::format("gpu ({})", std::get<std::string>(name->second));
}

// The first of the device's properties that it has, in bytes; none on the processor.
std::optional<int64_t> device_bytes(std::initializer_list<const char*> names) {
  const mlx::core::Device device = mlx::core::default_device();
  if (device == mlx::core::Device::cpu) return std::nullopt;
  const auto& properties = mlx::core::device_info(device);
  for (const char* name : names) {
    const auto found = properties.find(name);
    if (found == properties.end() || !std::holds_alternative<size_t>(found->second)) continue;
    return static_cast<int64_t>(std::get<size_t>(found->second));
  }
  return std::nullopt;
}

// On a GPU, MLX keeps freed buffers for reuse up to here; beyond, lengths that never come again would fill the memory.
constexpr size_t kCacheBytes = size_t{1} << 30;

// Work is queued while less than the limit but for this share is taken: the last operation may take more.
constexpr int64_t kLastOperation = 64;

// MLX sends operations to a GPU in groups, and lets go of what one worked on when its group is done. A group ends once
// its operations read so many million values, where the user has not set another number; MLX's own for CUDA (1000) is
// as much as a whole block.
constexpr const char* kMostReadByAGroup = "50";

}  // namespace

bool computes_on_cpu() { return mlx::core::default_device() == mlx::core::Device::cpu; }

int64_t blocks_to_queue() { return computes_on_cpu() ? 1 : 16; }

int64_t blocks_at_once() { return computes_on_cpu() ? 2 : 1; }

void bound_memory(int64_t limit) {
  if (computes_on_cpu()) {
    mlx::core::set_cache_limit(0);
    keep_freed_memory();
    return;
  }
  ::setenv("MLX_MAX_MB_PER_BUFFER", kMostReadByAGroup, /* overwrite = */ 0);
  mlx::core::array(0.0f).eval();  // MLX's device is there
  mlx::core::set_memory_limit(static_cast<size_t>(limit - limit / kLastOperation));
  mlx::core::set_cache_limit(kCacheBytes);
  if (mlx::core::cu::is_available() &&
      !keep_in_cuda_pool(mlx::core::default_device().index, static_cast<uint64_t>(limit))) {
    spdlog::warn("CUDA's memory pool cannot be told to keep memory: steps will be slower");
  }
}

int64_t device_memory() {
  return device_bytes({"max_recommended_working_set_size", "total_memory", "memory_size"}).value_or(machine_memory());
}

std::optional<int64_t> device_memory_taken() {
  const std::optional<int64_t> all = device_bytes({"total_memory", "memory_size"}),
                               free = device_bytes({"free_memory"});
  if (!all || !free) return std::nullopt;
  return *all - *free;
}

std::string describe_backend() {
  return fmt::format("mlx {}, device {}, BLAS {}", mlx::core::version(), describe_device(), describe_blas());
}

}  // namespace trunkline

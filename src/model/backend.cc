#include "model/backend.h"

#include <fmt/format.h>
#include <mlx/backend/cuda/cuda.h>
#include <mlx/device.h>
#include <mlx/mlx.h>
#include <mlx/version.h>

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

}  // namespace

int64_t blocks_worth_queueing(int64_t bytes_of_a_weight) {
  return mlx::core::default_device() == mlx::core::Device::cpu || bytes_of_a_weight > 2 ? 2 : 4;
}

void bound_freed_memory(int64_t limit) {
  if (mlx::core::default_device() == mlx::core::Device::cpu) {
    mlx::core::set_cache_limit(0);
    keep_freed_memory();
    return;
  }
  mlx::core::array(0.0f).eval();  // MLX's device is there
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

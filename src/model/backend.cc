#include "model/backend.h"

#include <fmt/format.h>
#include <mlx/device.h>
#include <mlx/version.h>

#include <initializer_list>

#include "base/blas.h"
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

}  // namespace

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

#include "bridge/arrays.h"

#include <cstring>
#include <utility>

#include "base/fail.h"

namespace trunkline {
namespace {

constexpr size_t kSmallBytes = 64 << 10;
constexpr size_t kPackBytes = 4 << 20;

bool is_in_row_order(const mx::array& array) {
  return array.flags().row_contiguous && array.data_size() == array.size();
}

// Applies exchange(data, bytes) to all parts: to a large one in place, to small ones packed together.
template <typename Exchange>
void exchange_all(const std::vector<std::span<char>>& parts, Exchange exchange) {
  std::vector<char> pack;
  std::vector<std::span<char>> packed;
  const auto flush = [&] {
    if (pack.empty()) return;
    exchange(pack.data(), pack.size());
    const char* at = pack.data();
    for (const std::span<char> part : packed) {
      std::memcpy(part.data(), at, part.size());
      at += part.size();
    }
    pack.clear();
    packed.clear();
  };
  for (const std::span<char> part : parts) {
    if (part.size() >= kSmallBytes) {
      exchange(part.data(), part.size());
      continue;
    }
    pack.insert(pack.end(), part.begin(), part.end());
    packed.push_back(part);
    if (pack.size() >= kPackBytes) flush();
  }
  flush();
}

// The arrays' bytes, in memory that may be written to.
std::vector<std::span<char>> own_bytes(std::vector<mx::array>& arrays) {
  std::vector<std::span<char>> parts;
  for (mx::array& array : arrays) {
    array = own(std::move(array));
    parts.emplace_back(array.data<char>(), array.nbytes());
  }
  return parts;
}

}  // namespace

mx::array in_row_order(mx::array array) {
  array.eval();
  if (is_in_row_order(array)) return array;
  mx::array ordered = mx::contiguous(array);
  ordered.eval();
  return ordered;
}

mx::array own(mx::array array) {
  array.eval();
  if (is_in_row_order(array) && array.is_donatable()) return array;
  const mx::array ordered = in_row_order(array);
  mx::array copy(mx::allocator::malloc(array.nbytes()), array.shape(), array.dtype());
  std::memcpy(copy.data<char>(), ordered.data<char>(), array.nbytes());
  return copy;
}

void all_sum(Group& group, std::vector<mx::array>& arrays) {
  for (const mx::array& array : arrays) {
    if (array.dtype() != mx::float32) fail(ErrorKind::unsupported, "all_sum of arrays takes float32 alone");
  }
  if (group.size() == 1) return;
  all_sum(group, own_bytes(arrays), Dtype::f32);
}

void all_sum(Group& group, const std::vector<std::span<char>>& parts, Dtype dtype) {
  if (group.size() == 1) return;
  exchange_all(parts, [&](char* data, size_t bytes) { group.all_sum(data, data, bytes / size_of(dtype), dtype); });
}

void broadcast(Group& group, std::vector<mx::array>& arrays, int root) {
  if (group.size() == 1) return;
  exchange_all(own_bytes(arrays), [&](char* data, size_t bytes) { group.broadcast(data, bytes, Dtype::u8, root); });
}

}  // namespace trunkline

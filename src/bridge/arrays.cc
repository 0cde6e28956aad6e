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

// Applies exchange(data, bytes) to the bytes of all arrays: to a large one in place, to small ones packed together.
template <typename Exchange>
void exchange_all(std::vector<mx::array>& arrays, Exchange exchange) {
  std::vector<char> pack;
  std::vector<mx::array*> packed;
  const auto flush = [&] {
    if (pack.empty()) return;
    exchange(pack.data(), pack.size());
    const char* at = pack.data();
    for (mx::array* array : packed) {
      std::memcpy(array->data<char>(), at, array->nbytes());
      at += array->nbytes();
    }
    pack.clear();
    packed.clear();
  };
  for (mx::array& array : arrays) {
    array = own(std::move(array));
    if (array.nbytes() >= kSmallBytes) {
      exchange(array.data<char>(), array.nbytes());
      continue;
    }
    pack.insert(pack.end(), array.data<char>(), array.data<char>() + array.nbytes());
    packed.push_back(&array);
    if (pack.size() >= kPackBytes) flush();
  }
  flush();
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
  exchange_all(arrays, [&](char* data, size_t bytes) { group.all_sum(data, data, bytes / sizeof(float), Dtype::f32); });
}

void broadcast(Group& group, std::vector<mx::array>& arrays, int root) {
  if (group.size() == 1) return;
  exchange_all(arrays, [&](char* data, size_t bytes) { group.broadcast(data, bytes, Dtype::u8, root); });
}

}  // namespace trunkline

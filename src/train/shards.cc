#include "train/shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "bridge/arrays.h"
#include "model/parts.h"
#include "train/together.h"

namespace trunkline {
namespace {

mx::array rows_of(const mx::array& tensor, const TensorRows& rows) {
  return part(tensor, 0, static_cast<int>(rows.row), static_cast<int>(rows.row + rows.rows));
}

size_t row_bytes(const mx::array& tensor) { return tensor.nbytes() / static_cast<size_t>(tensor.shape(0)); }

mx::Shape dims_of(const TensorShape& shape) { return {shape.dims.begin(), shape.dims.end()}; }

mx::array empty(const mx::Shape& shape, mx::Dtype dtype) {
  size_t bytes = mx::size_of(dtype);
  for (const auto dim : shape) bytes *= static_cast<size_t>(dim);
  return mx::array(mx::allocator::malloc(bytes), shape, dtype);
}

// Copies a part (in row order) to its place in a tensor's memory.
void put(mx::array& tensor, const TensorRows& rows, const mx::array& part) {
  std::memcpy(tensor.data<char>() + static_cast<size_t>(rows.row) * row_bytes(tensor), part.data<char>(),
              part.nbytes());
}

// Of the embedding and its adapter; where it is tied, of the head as well.
bool embeds_with(const Decoder& decoder, size_t tensor) {
  const auto index = static_cast<int>(tensor);
  return index == decoder.embedding_index() ||
         std::ranges::count(decoder.embedding_layer().adapter_tensors(), index) > 0;
}

// An optimizer's arrays are named TENSOR.SLOT, slot by slot.
std::string slot_of(const std::string& name) { return name.substr(name.rfind('.')); }

}  // namespace

Shards::Shards(std::vector<Piece> pieces, std::vector<TensorShape> layout, int rank, int ranks)
    : pieces_(std::move(pieces)), tensors_(std::move(layout)), rank_(rank), ranks_(ranks) {
  for (const Piece& piece : pieces_) {
    for (const TensorRows& rows : piece.rows) {
      std::vector<size_t>& found = found_[{rows.tensor, rows.row}];
      const int64_t share = each(rows), rest = rows.rows - share * ranks;
      const auto add = [&](int64_t row, int64_t count, bool everyones) {
        if (count == 0) return;
        found.push_back(parts_.size());
        parts_.push_back({{rows.tensor, row, count}, everyones});
      };
      add(rows.row + share * rank, share, false);
      add(rows.row + share * ranks, rest, true);
    }
  }
}

int64_t Shards::each(const TensorRows& rows) const {
  return tensors_[rows.tensor].dims.size() > 1 ? rows.rows / ranks_ : 0;
}

const std::vector<size_t>& Shards::parts_of(const TensorRows& rows) const { return found_.at({rows.tensor, rows.row}); }

std::vector<TensorShape> Shards::layout() const {
  std::vector<TensorShape> layout;
  for (const auto& [rows, everyones] : parts_) {
    TensorShape shape = tensors_[rows.tensor];
    if (rows.rows != shape.dims.front()) shape.name += fmt::format("[{}:{}]", rows.row, rows.row + rows.rows);
    shape.dims.front() = rows.rows;
    layout.push_back(std::move(shape));
  }
  return layout;
}

Parameters Shards::of(const Parameters& tensors) const {
  Parameters own_parts;
  for (const auto& [rows, everyones] : parts_) {
    mx::array values = rows_of(tensors[rows.tensor], rows);
    if (values.dtype() != mx::float32) values = mx::astype(values, mx::float32);
    own_parts.push_back(own(std::move(values)));
  }
  return own_parts;
}

Piece Shards::as_parts(const Piece& piece) const {
  Piece result = piece;
  result.rows.clear();
  for (const TensorRows& rows : piece.rows) {
    for (const size_t at : parts_of(rows)) result.rows.push_back({at, 0, parts_[at].rows.rows});
  }
  return result;
}

ShardedWeights::ShardedWeights(Group& group, const Decoder& decoder, const Shards& shards, const Parameters& tensors)
    : group_(group),
      shards_(shards),
      own_(shards.of(tensors)),
      layers_(decoder.shape().layers),
      works_(shards.pieces().size()) {
  for (const Piece& piece : shards.pieces()) {
    const bool embeds =
        std::ranges::any_of(piece.rows, [&](const TensorRows& rows) { return embeds_with(decoder, rows.tensor); });
    needed_.push_back(piece.layer >= 0 ? piece.layer : embeds ? -1 : layers_);
  }
}

ShardedWeights::~ShardedWeights() {
  for (auto& piece : works_) {
    for (Work& work : piece) {
      try {
        work.wait();
      } catch (const std::exception&) {
        continue;  // whoever waited for it has been told, or the job has ended
      }
    }
  }
}

void ShardedWeights::start(Parameters& tensors) {
  if (!std::exchange(behind_, false)) return;
  for (size_t i = shards_.pieces().size(); i-- > 0;) {
    for (const TensorRows& rows : shards_.pieces()[i].rows) {
      mx::array& tensor = tensors[rows.tensor];
      tensor = trunkline::own(std::exchange(tensor, mx::array(0.0f)));
      for (const size_t at : shards_.parts_of(rows)) {
        const auto& [place, everyones] = shards_.parts()[at];
        mx::array mine = in_row_order(tensor.dtype() == mx::float32 ? own_[at] : mx::astype(own_[at], tensor.dtype()));
        if (everyones) {
          put(tensor, place, mine);
          continue;
        }
        char* const all = tensor.data<char>() + static_cast<size_t>(rows.row) * row_bytes(tensor);
        works_[i].push_back(group_.all_gather_async(mine.data<char>(), all, mine.nbytes(), Dtype::u8));
        sent_.push_back(std::move(mine));
      }
    }
  }
}

void ShardedWeights::wait_for(int64_t layer) {
  for (size_t i = 0; i < works_.size(); ++i) {
    if (needed_[i] > layer) continue;
    for (Work& work : works_[i]) work.wait();
    works_[i].clear();
  }
  if (layer >= layers_) sent_.clear();
}

Parameters gather_parts(Group& group, const Shards& shards, const Parameters& own_parts) {
  const bool keeps = shards.rank() == 0;
  std::map<size_t, std::vector<TensorRows>> by_tensor;
  for (const Piece& piece : shards.pieces()) {
    for (const TensorRows& rows : piece.rows) by_tensor[rows.tensor].push_back(rows);
  }
  Parameters whole(shards.tensors().size(), mx::array(0.0f));
  for (const auto& [tensor, cuts] : by_tensor) {
    mx::array all = empty(dims_of(shards.tensors()[tensor]), mx::float32);
    for (const TensorRows& rows : cuts) {
      for (const size_t at : shards.parts_of(rows)) {
        const mx::array mine = in_row_order(own_parts[at]);
        if (shards.parts()[at].everyones) {
          put(all, shards.parts()[at].rows, mine);
        } else {
          char* const to = all.data<char>() + static_cast<size_t>(rows.row) * row_bytes(all);
          group.all_gather(mine.data<char>(), to, mine.nbytes(), Dtype::u8);
        }
      }
    }
    if (keeps) whole[tensor] = std::move(all);
  }
  return whole;
}

NamedArrays gather_state(Group& group, const Shards& shards, const NamedArrays& own_arrays) {
  NamedArrays whole;
  const size_t parts = shards.parts().size();
  for (size_t first = 0; first < own_arrays.size(); first += parts) {
    Parameters slot;
    for (size_t i = 0; i < parts; ++i) slot.push_back(own_arrays[first + i].second);
    const Parameters tensors = gather_parts(group, shards, slot);
    std::vector<bool> trained(tensors.size());
    for (const auto& [rows, everyones] : shards.parts()) trained[rows.tensor] = true;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (trained[i]) whole.emplace_back(shards.tensors()[i].name + slot_of(own_arrays[first].first), tensors[i]);
    }
  }
  return whole;
}

NamedArrays scatter_state(Group& group, const Shards& shards, const NamedArrays& whole, const NamedArrays& own_arrays) {
  // What travels: a slot of a tensor, of which this rank keeps parts.
  struct Travelling {
    std::string name;
    mx::Shape shape;
    std::vector<size_t> kept;  // in own_arrays
  };
  std::vector<Travelling> all;
  const size_t parts = shards.parts().size();
  for (size_t first = 0; first < own_arrays.size(); first += parts) {
    std::map<size_t, std::vector<size_t>> by_tensor;
    for (size_t i = 0; i < parts; ++i) by_tensor[shards.parts()[i].rows.tensor].push_back(first + i);
    for (const auto& [tensor, kept] : by_tensor) {
      const TensorShape& shape = shards.tensors()[tensor];
      all.push_back({shape.name + slot_of(own_arrays[first].first), dims_of(shape), kept});
    }
  }
  std::map<std::string, mx::array> by_name(whole.begin(), whole.end());
  together(group, [&] {
    if (shards.rank() != 0) return;
    for (const auto& [name, shape, kept] : all) {
      const auto found = by_name.find(name);
      if (found == by_name.end()) fail(ErrorKind::input, "optimizer state: {} is missing", name);
      if (found->second.shape() != shape || found->second.dtype() != mx::float32) {
        fail(ErrorKind::input, "optimizer state: {} has another shape or dtype than the model's tensor", name);
      }
    }
    if (by_name.size() == all.size()) return;
    for (const Travelling& known : all) by_name.erase(known.name);
    fail(ErrorKind::input, "optimizer state: {} belongs to no tensor here", by_name.begin()->first);
  });
  NamedArrays result = own_arrays;
  for (const auto& [name, shape, kept] : all) {
    std::vector<mx::array> tensor = {shards.rank() == 0 ? by_name.at(name) : empty(shape, mx::float32)};
    broadcast(group, tensor, 0);
    for (const size_t i : kept) result[i].second = own(rows_of(tensor.front(), shards.parts()[i % parts].rows));
  }
  return result;
}

}  // namespace trunkline

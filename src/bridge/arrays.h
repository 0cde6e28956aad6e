// Group's collectives on MLX arrays in memory that both the processor and MLX see.
#pragma once

#include <mlx/mlx.h>

#include <span>
#include <vector>

#include "trunkline/group.h"

namespace trunkline {

namespace mx = mlx::core;

// `array` evaluated, its elements in row order and without gaps: data() is all of it. The same memory where it was so.
mx::array in_row_order(mx::array array);

// `array` evaluated and in row order, in memory that nothing else holds: data() may be written to. Hand it over with
// std::move, or it will be copied.
mx::array own(mx::array array);

// Evaluates `arrays` (f32) and replaces each by its sum over the ranks; every rank gives the same shapes. Arrays of at
// least 64 KiB are summed in place where nothing else holds their memory; smaller ones travel together.
void all_sum(Group& group, std::vector<mx::array>& arrays);

// The same of elements in memory, without MLX: for a thread that must not call it. Parts of less than 64 KiB travel
// together.
void all_sum(Group& group, const std::vector<std::span<char>>& parts, Dtype dtype);

// Replaces `arrays` (any dtype) by rank `root`'s; every rank gives the same shapes and dtypes.
void broadcast(Group& group, std::vector<mx::array>& arrays, int root);

}  // namespace trunkline

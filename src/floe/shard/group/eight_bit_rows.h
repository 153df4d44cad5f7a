// Rows in 8 bits on their way into a slice, which may have a part of them only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "floe/kernels/eight_bit/eight_bit.h"
#include "floe/shard/group/flat_group.h"

namespace floe::shard {

// Writes rows [first_row, ...) of the piece's parameter to the slice, as far as the piece has them.
void store_rows(FlatGroup& group, const Piece& piece, std::int64_t first_row,
                const kernels::EightBitRows& rows);

// Writes codes and scales of these values [slice_numel] to the slice: what `store_rows` would write
// of whole rows, to the bit. A row that a slice cuts has its largest magnitude on any of the ranks
// that have a part of it, so each tells the others what it has of its first row and of its last.
// Collective over the shard group. The host does not wait for the device.
void store_slice(FlatGroup& group, const at::Tensor& values);

}  // namespace floe::shard

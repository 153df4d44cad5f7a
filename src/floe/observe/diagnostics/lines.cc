#include "floe/observe/diagnostics/lines.h"

namespace floe::diag {

std::vector<RankBytes> rank_bytes(const shard::ShardPlan& plan) {
  std::vector<RankBytes> ranks(static_cast<std::size_t>(plan.world_size));
  for (int rank = 0; rank < plan.world_size; ++rank) {
    RankBytes& bytes = ranks[static_cast<std::size_t>(rank)];
    bytes.rank = rank;
    for (const shard::PlannedGroup& group : plan.groups) {
      std::int64_t real = 0;
      for (const shard::Piece& piece : group.layout.pieces(rank % group.shard_size))
        real += piece.numel;
      const auto element = static_cast<std::int64_t>(c10::elementSize(group.storage_dtype));
      (group.trainable ? bytes.trainable_bytes : bytes.frozen_bytes) += group.shard_bytes();
      bytes.padding_bytes += (group.layout.shard_numel() - real) * element;
    }
  }
  return ranks;
}

}  // namespace floe::diag

#include "floe/shard/group/shared_reads.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "floe/core/bytes.h"
#include "floe/nn/load.h"

namespace floe::shard {
namespace {

constexpr std::int64_t kReadAlone = 64 << 10;   // bytes that are not worth a collective
constexpr std::int64_t kGathered = 64LL << 20;  // bytes at once

}  // namespace

void SharedReads::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
  }
}

void SharedReads::finish() {
  if (const auto failure = std::exchange(failure_, nullptr)) std::rethrow_exception(failure);
}

void SharedReads::read(const FlatGroup& group, const TensorSource& source, const TensorInfo& info,
                       std::int64_t first, const at::Tensor& out) {
  comm::Group* const copies = group.copies();
  const auto element = static_cast<std::int64_t>(out.element_size());
  if (!copies || out.numel() * element < kReadAlone)
    return attempt([&] { nn::read_elements(source, info, first, out); });
  const std::int64_t ranks = copies->size();
  const std::int64_t most = std::max<std::int64_t>(1, kGathered / element / ranks);
  for (std::int64_t at = 0; at < out.numel();) {
    const std::int64_t part = std::min(most, ceil_div(out.numel() - at, ranks));
    const std::int64_t count = std::min(part * ranks, out.numel() - at);
    const at::Tensor all = at::empty({part * ranks}, out.options().device(group.device()));
    const at::Tensor own = all.narrow(0, copies->rank() * part, part);
    const std::int64_t begin = std::min(count, copies->rank() * part);
    const std::int64_t wanted = std::min(part, count - begin);
    own.zero_();
    attempt([&] {
      if (wanted > 0) nn::read_elements(source, info, first + at + begin, own.narrow(0, 0, wanted));
    });
    copies->all_gather(all, own, "read " + info.name).wait();
    out.narrow(0, at, count).copy_(all.narrow(0, 0, count));
    at += count;
  }
}

}  // namespace floe::shard

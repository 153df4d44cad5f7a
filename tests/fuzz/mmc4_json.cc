// Any bytes as an MMC4 document: a sample that holds together or a reason, by both rules.
#include <cstdint>
#include <cstdlib>

#include "floe/data/sources/mmc4.h"
#include "floe/inspect/inspect.h"

using namespace floe;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const inspect::MarksOnly tokenizer;
  static const image::Transform transform;
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  const data::RawSample raw{"shard", "key", {{"json", {bytes, bytes + size}}}};
  for (const data::Rules rules : {data::Rules::openflamingo, data::Rules::corrected}) {
    const data::Mmc4Maker maker(tokenizer, inspect::MarksOnly::tokens(), transform,
                                {.rules = rules, .text_sim_threshold = 0.2, .max_tokens = 64});
    const data::Outcome outcome = maker.make(raw);
    if (const auto* dropped = std::get_if<data::Dropped>(&outcome)) {
      if (dropped->reason.empty() || dropped->detail.empty()) std::abort();
      continue;
    }
    const auto& sample = std::get<data::Sample>(outcome);
    if (sample.ids.size() > 64 || sample.labels.size() != sample.ids.size()) std::abort();
    if (sample.num_images() > 6 || sample.sizes.size() != sample.num_images()) std::abort();
    if (sample.crops.size() != sample.num_images() * transform.crop_bytes()) std::abort();
  }
  return 0;
}

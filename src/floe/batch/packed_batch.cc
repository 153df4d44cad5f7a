#include "floe/batch/packed_batch.h"

#include <string_view>

#include "floe/core/error.h"

namespace floe {
namespace {

std::string shape_text(const at::Tensor& tensor) { return str("[", join(tensor.sizes()), "]"); }

void check_integers(const at::Tensor& tensor, std::string_view name, std::int64_t length) {
  require<DataError>(tensor.defined(), "batch: '", name, "' is not set");
  require<DataError>(tensor.scalar_type() == at::kLong, "batch: '", name, "' must be int64, not ",
                     at::toString(tensor.scalar_type()));
  require<DataError>(tensor.dim() == 1 && tensor.numel() == length, "batch: '", name,
                     "' must have the shape [", length, "], not ", shape_text(tensor));
}

// Offsets of S sequences into `total` items: S+1 numbers from 0 to total that never fall.
void check_offsets(const at::Tensor& tensor, std::string_view name, std::int64_t sequences,
                   std::int64_t total, std::string_view items) {
  check_integers(tensor, name, sequences + 1);
  const at::Tensor host = tensor.cpu().contiguous();
  const std::int64_t* offsets = host.const_data_ptr<std::int64_t>();
  require<DataError>(offsets[0] == 0, "batch: '", name, "' must begin with 0, not ", offsets[0]);
  for (std::int64_t s = 0; s < sequences; ++s)
    require<DataError>(offsets[s] <= offsets[s + 1], "batch: '", name, "' falls from ", offsets[s],
                       " to ", offsets[s + 1], " at sequence ", s);
  require<DataError>(offsets[sequences] == total, "batch: '", name,
                     "' must end with the number of ", items, ", ", total, ", not ",
                     offsets[sequences]);
}

}  // namespace

std::int64_t PackedBatch::num_tokens() const { return ids.defined() ? ids.numel() : 0; }
std::int64_t PackedBatch::num_sequences() const { return source.defined() ? source.numel() : 0; }
std::int64_t PackedBatch::num_images() const { return images.defined() ? images.size(0) : 0; }

std::int64_t PackedBatch::num_labels() const {
  return labels.defined() ? labels.ne(kNoLabel).sum().item<std::int64_t>() : 0;
}

void PackedBatch::validate() const {
  require<DataError>(ids.defined() && ids.dim() == 1, "batch: 'ids' must be one row of tokens");
  require<DataError>(source.defined() && source.dim() == 1,
                     "batch: 'source' must be one number per sequence");
  const std::int64_t tokens = num_tokens(), sequences = num_sequences();
  check_integers(ids, "ids", tokens);
  check_integers(positions, "positions", tokens);
  check_integers(labels, "labels", tokens);
  check_integers(source, "source", sequences);
  check_offsets(sequence_offsets, "sequence_offsets", sequences, tokens, "tokens");

  require<DataError>(images.defined() && images.dim() == 4 && images.size(1) == 3,
                     "batch: 'images' must have the shape [M, 3, H, W], not ",
                     images.defined() ? shape_text(images) : std::string("none"));
  require<DataError>(images.is_floating_point(), "batch: 'images' must be floating point, not ",
                     at::toString(images.scalar_type()));
  check_offsets(image_offsets, "image_offsets", sequences, num_images(), "images");

  if (image_slots.defined()) {
    check_integers(image_slots, "image_slots", sequences);
    require<DataError>(!image_slots.lt(image_offsets.diff()).any().item<bool>(),
                       "batch: 'image_slots' has fewer places than the sequence has images");
  }
  if (attended.defined())
    require<DataError>(
        attended.scalar_type() == at::kBool && attended.dim() == 1 && attended.numel() == tokens,
        "batch: 'attended' must be bool of the shape [", tokens, "], not ",
        at::toString(attended.scalar_type()), " ", shape_text(attended));

  require<DataError>(static_cast<std::int64_t>(sample_keys.size()) == sequences,
                     "batch: 'sample_keys' has ", sample_keys.size(), " keys for ", sequences,
                     " sequences");
  for (const at::Tensor& tensor : {sequence_offsets, positions, labels, source, images,
                                   image_offsets, image_slots, attended}) {
    if (!tensor.defined()) continue;
    require<DataError>(tensor.device() == ids.device(), "batch: its tensors lie on ",
                       ids.device().str(), " and on ", tensor.device().str(),
                       "; move all with to()");
  }
  if (tokens == 0) return;
  // A token's position and id are indices into tables; a negative one would read out of bounds.
  require<DataError>(ids.min().item<std::int64_t>() >= 0, "batch: 'ids' has a negative token");
  require<DataError>(positions.min().item<std::int64_t>() >= 0,
                     "batch: 'positions' has a negative position");
  require<DataError>(!labels.lt(0).logical_and(labels.ne(kNoLabel)).any().item<bool>(),
                     "batch: 'labels' has a negative label other than ", kNoLabel);
}

PackedBatch PackedBatch::to(const at::Device& device, bool non_blocking) const {
  const auto move = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device, tensor.scalar_type(), non_blocking) : tensor;
  };
  return {.ids = move(ids),
          .sequence_offsets = move(sequence_offsets),
          .positions = move(positions),
          .labels = move(labels),
          .source = move(source),
          .images = move(images),
          .image_offsets = move(image_offsets),
          .image_slots = move(image_slots),
          .attended = move(attended),
          .sample_keys = sample_keys};
}

at::Tensor to_device(const at::Tensor& tensor, const at::Device& device) {
  if (tensor.device() == device) return tensor;
  const bool pin = tensor.is_cpu() && device.is_cuda();
  return (pin ? tensor.pin_memory() : tensor)
      .to(device, tensor.scalar_type(), /*non_blocking=*/pin);
}

}  // namespace floe

#include "floe/nn/segments.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <map>

#include "floe/batch/packed_batch.h"
#include "floe/kernels/rehearsal.h"

namespace floe::nn {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct Pad : torch::autograd::Function<Pad> {
  static Variable forward(AutogradContext* context, const Variable& tokens,
                          const at::Tensor& token_of, const at::Tensor& place_of) {
    context->save_for_backward({place_of});
    return tokens.index_select(0, token_of);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    return {grads[0].index_select(0, context->get_saved_variables()[0]), {}, {}};
  }
};

struct Unpad : torch::autograd::Function<Unpad> {
  static Variable forward(AutogradContext* context, const Variable& places,
                          const at::Tensor& place_of) {
    context->save_for_backward({place_of});
    context->saved_data["places"] = places.size(0);
    return places.index_select(0, place_of);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    std::vector<std::int64_t> shape = grads[0].sizes().vec();
    shape[0] = context->saved_data["places"].toInt();
    at::Tensor places = at::zeros(shape, grads[0].options());
    return {places.index_copy_(0, context->get_saved_variables()[0], grads[0]), {}};
  }
};

// Sequences whose lengths round up to the same number share a bucket: at most a third is padding (a
// half from 33 to 64 tokens), and short sequences (up to 32 tokens) always share one.
std::int64_t length_class(std::int64_t length) {
  const auto step = std::max<std::int64_t>(
      32, static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(length)) / 2));
  return (length + step - 1) / step * step;
}

}  // namespace

bool Bucket::is_full() const {
  return std::all_of(lengths.begin(), lengths.end(), [&](std::int64_t l) { return l == length; });
}

at::Tensor Bucket::of(const at::Tensor& places) const {
  std::vector<std::int64_t> shape{rows, length};
  for (std::int64_t d = 1; d < places.dim(); ++d) shape.push_back(places.size(d));
  return places.narrow(0, first_place, rows * length).view(shape);
}

Segments::Segments(const at::Tensor& offsets, const at::Tensor& attended, at::Device device,
                   bool rounded)
    : host_offsets_(offsets), attended_(attended), device_(device) {
  const auto* offset = offsets.const_data_ptr<std::int64_t>();
  const std::int64_t sequences = offsets.numel() - 1;
  num_tokens_ = offset[sequences];
  for (std::int64_t s = 0; s < sequences; ++s)
    longest_ = std::max(longest_, offset[s + 1] - offset[s]);
  if (rounded) longest_ = bucket_size(longest_);
  if (!attended.defined() && !kernels::acts_as_cpu(device))
    offsets_ = to_device(offsets.to(at::kInt), device);
}

std::vector<std::int64_t> Segments::begins() const {
  if (!host_offsets_.defined()) return {0};
  const auto* offset = host_offsets_.const_data_ptr<std::int64_t>();
  return {offset, offset + host_offsets_.numel()};
}

const Segments::Places& Segments::places() const {
  if (!places_) places_ = lay_out();
  return *places_;
}

std::shared_ptr<const Segments::Places> Segments::lay_out() const {
  auto places = std::make_shared<Places>();
  if (!host_offsets_.defined()) return places;
  const auto* offset = host_offsets_.const_data_ptr<std::int64_t>();
  std::map<std::int64_t, Bucket> by_class;
  for (std::int64_t s = 0; s + 1 < host_offsets_.numel(); ++s) {
    const std::int64_t length = offset[s + 1] - offset[s];
    if (length == 0) continue;
    Bucket& bucket = by_class[length_class(length)];
    bucket.sequences.push_back(s);
    bucket.lengths.push_back(length);
    bucket.length = std::max(bucket.length, length);
  }
  for (auto& [key, bucket] : by_class) {
    bucket.rows = static_cast<std::int64_t>(bucket.sequences.size());
    bucket.first_place = places->count;
    places->count += bucket.rows * bucket.length;
    places->buckets.push_back(std::move(bucket));
  }

  at::Tensor token_of = at::empty({places->count}, at::kLong);
  at::Tensor place_of = at::empty({num_tokens_}, at::kLong);
  auto* token = token_of.mutable_data_ptr<std::int64_t>();
  auto* place = place_of.mutable_data_ptr<std::int64_t>();
  for (Bucket& bucket : places->buckets) {
    at::Tensor hidden;
    if (attended_.defined()) hidden = at::zeros({bucket.rows, bucket.length}, at::kBool);
    for (std::int64_t row = 0; row < bucket.rows; ++row) {
      const std::int64_t s = bucket.sequences[static_cast<std::size_t>(row)];
      const std::int64_t length = offset[s + 1] - offset[s];
      for (std::int64_t i = 0; i < bucket.length; ++i) {
        const std::int64_t p = bucket.first_place + row * bucket.length + i;
        const std::int64_t t = offset[s] + std::min(i, length - 1);
        token[p] = t;
        places->in_place = places->in_place && t == p;
        if (i < length) place[t] = p;
        if (hidden.defined() && i < length && !attended_.const_data_ptr<bool>()[t])
          hidden.mutable_data_ptr<bool>()[row * bucket.length + i] = true;
      }
    }
    if (hidden.defined() && hidden.any().item<bool>()) bucket.hidden = to_device(hidden, device_);
  }
  if (places->in_place) return places;
  places->token_of = to_device(token_of, device_);
  places->place_of = to_device(place_of, device_);
  return places;
}

std::vector<at::Tensor> Segments::parts(const at::Tensor& places) const {
  std::vector<std::int64_t> sizes;
  const std::vector<Bucket>& buckets = this->buckets();
  for (const Bucket& bucket : buckets) sizes.push_back(bucket.rows * bucket.length);
  std::vector<at::Tensor> parts = places.split_with_sizes(sizes);  // its gradient is one copy
  for (std::size_t b = 0; b < parts.size(); ++b) {
    std::vector<std::int64_t> shape{buckets[b].rows, buckets[b].length};
    for (std::int64_t d = 1; d < places.dim(); ++d) shape.push_back(places.size(d));
    parts[b] = parts[b].view(shape);
  }
  return parts;
}

at::Tensor Segments::pad(const at::Tensor& tokens) const {
  // Kernels of accelerators take tokens with gaps between them as they are.
  if (places().in_place) return kernels::acts_as_cpu(tokens) ? tokens.contiguous() : tokens;
  return Pad::apply(tokens, places().token_of, places().place_of);
}

at::Tensor Segments::unpad(const at::Tensor& places) const {
  const Places& laid_out = this->places();
  return laid_out.in_place ? places : Unpad::apply(places, laid_out.place_of);
}

void Segments::add_parts(BatchParts& parts) const {
  parts.add(num_tokens_);
  parts.add(longest_);
  parts.add(offsets_);
  parts.add(places_ != nullptr);
  if (!places_) return;
  for (const Bucket& bucket : places_->buckets) {
    parts.add(bucket.rows);
    parts.add(bucket.length);
    parts.add(bucket.hidden);
  }
  parts.add(places_->token_of);
  parts.add(places_->place_of);
}

}  // namespace floe::nn

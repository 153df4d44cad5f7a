#include "floe/generation/lockstep.h"

#include <ATen/ops/zeros.h>

#include <utility>

#include "floe/core/error.h"
#include "floe/generation/generate_session.h"

namespace floe::generation {

Lockstep::Lockstep(models::LanguageModel& model, at::Device device, at::ScalarType dtype,
                   AnyRank any_rank, const std::atomic<bool>* stop)
    : model_(model),
      options_(at::TensorOptions().device(device).dtype(dtype)),
      any_rank_(std::move(any_rank)),
      stop_(stop) {}

Lockstep::Turn Lockstep::next(const Turn& own) {
  const std::vector<bool> any = any_rank_({own.pass, own.images, stop_ && *stop_});
  stopped_ = stopped_ || any[2];
  return {any[0], any[1]};
}

bool Lockstep::begin_pass(bool images) { return next({.pass = true, .images = images}).images; }

void Lockstep::finish() {
  for (Turn turn = next({}); turn.pass; turn = next({})) pass_beside(turn.images);
  pass_beside(/*images=*/model_.media_token() >= 0);
}

void Lockstep::pass_beside(bool images) {
  GenerateSession::of_one_token(model_, *this, !images).pass_beside(images);
}

at::Tensor Lockstep::blank_media() const {
  require(media_shape_.size() == 3, "no rank has encoded images yet");
  return at::zeros({1, media_shape_[1], media_shape_[2]}, options_);
}

at::Tensor Lockstep::blank_image() const {
  return at::zeros({1, 3, model_.image_size(), model_.image_size()}, options_);
}

}  // namespace floe::generation

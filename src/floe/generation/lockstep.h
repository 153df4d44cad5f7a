// Ranks that hold a model together and each have something else to ask it.
//
// Note [Lockstep]
// A model that is sliced over ranks is gathered unit by unit in every pass, so all ranks make every
// pass, through the same units in the same order. But their passes differ in kind and in number:
// one reads prompts with images, one adds a token to its texts, one has done its share. So before
// each pass the ranks tell each other whether they have one, and whether it encodes images. Then
// all of them go through the image tower, if anybody needs it, the decoder and the head; who has
// nothing for one of these gives it a blank image, or a single token, and forgets what comes out.
//
//   Lockstep lockstep(model, device, dtype, any_rank);
//   ...generate_each(…, &lockstep)...   // on each rank as often as it has prompts
//   lockstep.finish();                  // goes along until all ranks are here
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <functional>
#include <vector>

#include "floe/models/language_model.h"

namespace floe::generation {

class Lockstep {
 public:
  // Collective, Engine::any_rank_has: of each of some kinds of work, whether any of the
  // ranks has it.
  using AnyRank = std::function<std::vector<bool>(const std::vector<bool>& own)>;

  // The model is in evaluation mode and stays with the caller. `stop`: when it is true on one rank,
  // all hear of it with the next pass; null: nobody stops.
  Lockstep(models::LanguageModel& model, at::Device device, at::ScalarType dtype, AnyRank any_rank,
           const std::atomic<bool>* stop = nullptr);

  // Collective: all ranks of the model, here or in `finish`. This rank makes a pass now, which
  // encodes images or not. Returns whether all encode some, blank ones if need be.
  bool begin_pass(bool images);
  // Collective: this rank has done its share, and makes passes beside the others until all are
  // here. The last one is a whole pass on all ranks: Engine::empty_forward repeats what was last.
  void finish();
  // Whether some rank was asked to stop; known to all ranks since the same pass.
  bool stopped() const { return stopped_; }

  // ---- for GenerateSession ----
  // Zeros in place of an encoded image, of which at least one rank has made some.
  at::Tensor blank_media() const;
  at::Tensor blank_image() const;
  void remember(const at::Tensor& media) { media_shape_ = media.sizes().vec(); }

 private:
  // What a rank, or any of them, has for the next pass.
  struct Turn {
    bool pass = false;    // one of its own
    bool images = false;  // which encodes images
  };
  Turn next(const Turn& own);
  void pass_beside(bool images);

  models::LanguageModel& model_;
  at::TensorOptions options_;
  AnyRank any_rank_;
  const std::atomic<bool>* stop_;
  bool stopped_ = false;
  std::vector<std::int64_t> media_shape_;  // [images, latents, D]
};

}  // namespace floe::generation

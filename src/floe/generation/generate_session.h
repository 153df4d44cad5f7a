// A model that is continued token by token, with a cache of keys and values: of text, and of images
// for the layers that look at them.
//
// Note [Remembered images]
// A new token has no ids of the prompt beside it, so its media time (Note [Media time]) does not
// follow from what the model gets. OpenFlamingo remembers, for each place of the batch, which
// tokens of its last input with an `<image>` were one; a token's time is their number. When any
// sequence of the batch generates `<image>`, that step's input is remembered instead, for all
// sequences: those that did not generate it see no image from then on. What is remembered belongs
// to the place in the batch: it does not move when beams change places. All this is followed here,
// so that the same text comes out. A model whose files say `use_cache: false` (MPT's do) gets the
// whole text for every token from transformers, and so its true times: `images_of_whole_text`.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "floe/generation/lockstep.h"
#include "floe/models/flamingo/media_plan.h"
#include "floe/models/language_model.h"
#include "floe/nn/attention.h"

namespace floe::generation {

struct Prompt {
  std::vector<std::int64_t> ids;
  at::Tensor images;  // [n, 3, H, W] on the CPU; undefined: none
};

// What "the batch" of Note [Remembered images] is.
enum class Company {
  one_batch,   // all prompts together
  each_alone,  // each prompt with its own sequences: as if it were computed without the others
};

struct SessionOptions {
  bool images_of_whole_text = false;  // see Note [Remembered images]
  Company company = Company::one_batch;
  std::int64_t room = 64;        // new tokens that the cache has room for before it grows
  Lockstep* lockstep = nullptr;  // Note [Lockstep]; null: this rank has the whole model
};

// Order of calls: start; then any number of repeat, reorder, keep and step. Or read, then score any
// number of times.
class GenerateSession {
 public:
  // Prompts must not be empty.
  GenerateSession(models::LanguageModel& model, const std::vector<Prompt>& prompts,
                  at::Device device, at::ScalarType dtype, const SessionOptions& options = {});

  std::int64_t sequences() const { return cache_.sequences(); }

  // Logits of the token after each prompt, [sequences, V] fp32 on the device.
  at::Tensor start();
  // The same after one more token for each sequence.
  at::Tensor step(const std::vector<std::int64_t>& tokens);

  // Reads the prompts without asking what follows.
  void read();
  // A text behind a prompt.
  struct Continuation {
    std::size_t prompt = 0;
    std::vector<std::int64_t> ids;  // at least one; an `<image>` counts on from the prompt's
  };
  // After `read`: log-probabilities of the tokens of the continuations, one after the other, fp32
  // on the CPU. What was read stays as it is.
  at::Tensor score(const std::vector<Continuation>& continuations) const;

  // Each sequence becomes `times` sequences, side by side.
  void repeat(std::int64_t times);
  // Sequence i continues the text of sequence from[i], which must have the same images. What is
  // remembered of images is that of places[i].
  void reorder(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& places);
  void reorder(const std::vector<std::int64_t>& from);  // places as they are
  // Only these sequences go on, in this order; one may be named several times.
  void keep(const std::vector<std::int64_t>& sequences) { reorder(sequences, sequences); }

  // ---- for Lockstep ----
  // Any token, alone, which looks at a blank image; `encoded`: at zeros in place of one.
  static GenerateSession of_one_token(models::LanguageModel& model, Lockstep& lockstep,
                                      bool encoded);
  // A pass that other ranks have begun.
  void pass_beside(bool images);

 private:
  // What a sequence knows of images.
  struct Sight {
    std::size_t prompt = 0;
    std::int64_t first_image = 0, num_images = 0;
    std::int64_t remembered = 0;  // see Note [Remembered images]
  };
  using Texts = std::vector<std::vector<std::int64_t>>;
  using Head = std::function<at::Tensor(const at::Tensor& hidden)>;

  void remember_images(const std::vector<std::int64_t>& tokens);
  bool has_images_to_encode() const { return model_.media_token() >= 0 && !media_.defined(); }
  // Gives the model more tokens of each sequence, and what `head` makes of their hidden states.
  at::Tensor forward(const Texts& tokens, const at::Tensor& times, const Head& head);
  // The same when all ranks know of it. `images_of_any`: some rank encodes images.
  at::Tensor run_pass(const Texts& tokens, const at::Tensor& times, const Head& head,
                      bool images_of_any);
  // The head of `start` and `step`.
  Head logits_of_last(const Texts& tokens);

  models::LanguageModel& model_;
  std::shared_ptr<const std::vector<Prompt>> prompts_;
  at::Device device_;
  at::ScalarType dtype_;
  SessionOptions options_;
  nn::KvCache cache_;
  std::shared_ptr<models::MediaCache> media_cache_;
  std::int64_t num_images_ = 0;  // of all prompts
  at::Tensor images_;            // [M, 3, H, W] until they are encoded
  at::Tensor media_;             // [M, latents, D], encoded
  at::Tensor last_hidden_;       // [prompts, D] of the last token of each, after `read`
  std::vector<Sight> sights_;
};

}  // namespace floe::generation

#include "floe/generation/generate_session.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "floe/batch/packed_batch.h"
#include "floe/core/error.h"

namespace floe::generation {
namespace {

std::int64_t longest(const std::vector<Prompt>& prompts) {
  std::size_t length = 0;
  for (const Prompt& prompt : prompts) length = std::max(length, prompt.ids.size());
  return static_cast<std::int64_t>(length);
}

at::Tensor offsets(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> ends{0};
  for (const std::int64_t length : lengths) ends.push_back(ends.back() + length);
  return at::tensor(ends, at::kLong);
}

void require_numbers(const at::Tensor& values) {
  require<DataError>(
      !values.isnan().any().item<bool>(),
      "the model's logits are not numbers (NaN); if it computes in fp16, try bf16 or "
      "fp32, else its weights are broken");
}

// Where the last token of each text lies, among the tokens of all.
at::Tensor last_tokens(const std::vector<std::vector<std::int64_t>>& texts, at::Device device) {
  std::vector<std::int64_t> last;
  for (const auto& text : texts)
    last.push_back((last.empty() ? -1 : last.back()) + static_cast<std::int64_t>(text.size()));
  return to_device(at::tensor(last, at::kLong), device);
}

}  // namespace

GenerateSession::GenerateSession(models::LanguageModel& model, const std::vector<Prompt>& prompts,
                                 at::Device device, at::ScalarType dtype,
                                 const SessionOptions& options)
    : model_(model),
      prompts_(std::make_shared<const std::vector<Prompt>>(prompts)),
      device_(device),
      dtype_(dtype),
      options_(options),
      cache_(static_cast<std::int64_t>(prompts.size()), longest(prompts) + options.room),
      media_cache_(std::make_shared<models::MediaCache>()) {
  std::vector<at::Tensor> images;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const Prompt& prompt = prompts[p];
    require<DataError>(!prompt.ids.empty(), "a prompt needs at least one token");
    if (prompt.images.defined()) images.push_back(prompt.images);
    const std::int64_t own = prompt.images.defined() ? prompt.images.size(0) : 0;
    sights_.push_back({p, num_images_, own,
                       std::count(prompt.ids.begin(), prompt.ids.end(), model.media_token())});
    num_images_ += own;
  }
  images_ = images.empty() ? at::zeros({0, 3, 1, 1}) : at::cat(images);
}

GenerateSession::Head GenerateSession::logits_of_last(const Texts& tokens) {
  return [this, index = last_tokens(tokens, device_)](const at::Tensor& hidden) {
    return model_.logits(hidden.index_select(0, index));
  };
}

at::Tensor GenerateSession::start() {
  Texts tokens;
  for (const Prompt& prompt : *prompts_) tokens.push_back(prompt.ids);
  const at::Tensor logits = forward(tokens, {}, logits_of_last(tokens)).to(at::kFloat).contiguous();
  require_numbers(logits);
  return logits;
}

void GenerateSession::read() {
  Texts tokens;
  for (const Prompt& prompt : *prompts_) tokens.push_back(prompt.ids);
  const at::Tensor index = last_tokens(tokens, device_);
  last_hidden_ = forward(tokens, {}, [&](const at::Tensor& hidden) {
    const at::Tensor last = hidden.index_select(0, index);
    if (options_.lockstep) model_.logits(last.narrow(0, 0, 1));  // other ranks may ask the head
    return last;
  });
}

void GenerateSession::remember_images(const std::vector<std::int64_t>& tokens) {
  const auto is_image = [&](std::size_t s) { return tokens[s] == model_.media_token(); };
  if (options_.images_of_whole_text) {
    for (std::size_t s = 0; s < tokens.size(); ++s) sights_[s].remembered += is_image(s);
    return;
  }
  for (std::size_t first = 0, end = 0; first < tokens.size(); first = end) {
    bool any = false;
    for (end = first; end < tokens.size() && (options_.company == Company::one_batch ||
                                              sights_[end].prompt == sights_[first].prompt);
         ++end)
      any = any || is_image(end);
    for (std::size_t s = first; any && s < end; ++s) sights_[s].remembered = is_image(s);
  }
}

at::Tensor GenerateSession::step(const std::vector<std::int64_t>& tokens) {
  require(tokens.size() == sights_.size(), "a step needs one token for each of ", sights_.size(),
          " sequences, not ", tokens.size());
  remember_images(tokens);
  Texts one_each;
  std::vector<std::int64_t> times;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    one_each.push_back({tokens[s]});
    times.push_back(sights_[s].remembered);
  }
  const at::Tensor logits =
      forward(one_each, at::tensor(times, at::kLong), logits_of_last(one_each))
          .to(at::kFloat)
          .contiguous();
  require_numbers(logits);
  return logits;
}

at::Tensor GenerateSession::score(const std::vector<Continuation>& continuations) const {
  require(last_hidden_.defined(), "score comes after read");
  // Who says a token: for the first of a text the end of the prompt, for the others the token
  // before. Nobody needs the last one as input, so texts of one token need no further pass.
  Texts given;
  std::vector<std::int64_t> sequences, times, sayers, targets;
  std::int64_t sayer = last_hidden_.size(0);
  for (const Continuation& text : continuations) {
    require<DataError>(!text.ids.empty(), "a text to score needs at least one token");
    sayers.push_back(static_cast<std::int64_t>(text.prompt));
    targets.insert(targets.end(), text.ids.begin(), text.ids.end());
    if (text.ids.size() == 1) continue;
    sequences.push_back(static_cast<std::int64_t>(text.prompt));
    given.emplace_back(text.ids.begin(), text.ids.end() - 1);
    std::int64_t time = sights_[text.prompt].remembered;
    for (const std::int64_t token : given.back()) {
      times.push_back(time += token == model_.media_token());
      sayers.push_back(sayer++);
    }
  }
  const at::Tensor index = to_device(at::tensor(sayers, at::kLong), device_);
  const at::Tensor target = to_device(at::tensor(targets, at::kLong), device_);
  const at::Tensor weights = at::ones({target.numel()}, target.options().dtype(at::kFloat));
  const Head losses = [&](const at::Tensor& hidden) {
    const at::Tensor all = hidden.defined() ? at::cat({last_hidden_, hidden}) : last_hidden_;
    return model_.loss(all.index_select(0, index), target, weights, /*z_loss=*/0).second;
  };
  at::Tensor loss;
  if (given.empty() && options_.lockstep) {
    GenerateSession beside = of_one_token(model_, *options_.lockstep, /*encoded=*/true);
    loss = beside.forward({{0}}, {}, [&](const at::Tensor&) { return losses({}); });
  } else if (given.empty()) {
    const at::AutoGradMode no_gradients(false);
    loss = nn::call_through(model_.module(), [&] { return losses({}); });
  } else {
    GenerateSession part = *this;
    part.last_hidden_ = at::Tensor();
    part.keep(sequences);
    loss = part.forward(given, at::tensor(times, at::kLong), losses);
  }
  require_numbers(loss);
  return loss.neg().to(at::kCPU, at::kFloat).contiguous();
}

void GenerateSession::repeat(std::int64_t times) {
  std::vector<std::int64_t> from;
  for (std::int64_t s = 0; s < sequences(); ++s) from.insert(from.end(), times, s);
  keep(from);
}

void GenerateSession::reorder(const std::vector<std::int64_t>& from) {
  std::vector<std::int64_t> places(from.size());
  std::iota(places.begin(), places.end(), 0);
  reorder(from, places);
}

void GenerateSession::reorder(const std::vector<std::int64_t>& from,
                              const std::vector<std::int64_t>& places) {
  std::vector<Sight> sights;
  for (std::size_t s = 0; s < from.size(); ++s) {
    Sight sight = sights_[static_cast<std::size_t>(places[s])];
    if (options_.images_of_whole_text)
      sight.remembered = sights_[static_cast<std::size_t>(from[s])].remembered;
    sights.push_back(sight);
  }
  sights_ = std::move(sights);
  cache_.reorder(from);
}

GenerateSession GenerateSession::of_one_token(models::LanguageModel& model, Lockstep& lockstep,
                                              bool encoded) {
  const at::Tensor blank = lockstep.blank_image();
  Prompt prompt{{0}, {}};
  if (model.media_token() >= 0) prompt.images = blank.to(at::kCPU, at::kFloat);
  GenerateSession session(model, {prompt}, blank.device(), blank.scalar_type(),
                          {.company = Company::each_alone, .room = 1, .lockstep = &lockstep});
  if (model.media_token() >= 0 && encoded) session.media_ = lockstep.blank_media();
  return session;
}

void GenerateSession::pass_beside(bool images) {
  const Texts tokens{{0}};
  run_pass(tokens, {}, logits_of_last(tokens), images);
}

at::Tensor GenerateSession::forward(const Texts& tokens, const at::Tensor& times,
                                    const Head& head) {
  const bool own = has_images_to_encode();
  return run_pass(tokens, times, head,
                  options_.lockstep ? options_.lockstep->begin_pass(own) : own);
}

at::Tensor GenerateSession::run_pass(const Texts& tokens, const at::Tensor& times, const Head& head,
                                     bool images_of_any) {
  PackedBatch batch;
  std::vector<std::int64_t> ids, positions, lengths, images, first_images;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    ids.insert(ids.end(), tokens[s].begin(), tokens[s].end());
    positions.resize(ids.size());
    std::iota(positions.end() - static_cast<std::ptrdiff_t>(tokens[s].size()), positions.end(),
              cache_.past()[s]);
    lengths.push_back(static_cast<std::int64_t>(tokens[s].size()));
    cache_.reserve(cache_.past()[s] + lengths.back());
    images.push_back(sights_[s].num_images);
    first_images.push_back(sights_[s].first_image);
  }
  batch.ids = at::tensor(ids, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  batch.sequence_offsets = offsets(lengths);
  batch.labels = at::full_like(batch.ids, kNoLabel);
  batch.source = at::zeros({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  // Once they are encoded, only their number matters.
  batch.images = media_.defined() ? at::empty({num_images_, 3, 0, 0}) : images_;
  batch.image_offsets = offsets(images);

  models::InputOptions how;
  how.device = device_;
  how.dtype = dtype_;
  how.cache = &cache_;
  how.media_cache = media_cache_.get();
  how.media_times = times;
  how.first_images = at::tensor(first_images, at::kLong);
  const at::AutoGradMode no_gradients(false);
  const auto input = models::prepare(model_, batch, how);
  const at::Tensor result = nn::call_through(model_.module(), [&] {
    if (has_images_to_encode()) {
      media_ = model_.encode_images(input->images, nullptr);
      if (options_.lockstep) options_.lockstep->remember(media_);
    } else if (images_of_any) {
      options_.lockstep->remember(model_.encode_images(options_.lockstep->blank_image(), nullptr));
    }
    return head(model_.hidden(*input, media_, nullptr));
  });
  images_ = at::Tensor();
  cache_.advance(lengths);
  return result;
}

}  // namespace floe::generation

#include "floe/generation/generate_session.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "floe/core/error.h"

namespace floe::generation {
namespace {

// New tokens that the cache has room for before it grows.
constexpr std::int64_t kFirstRoom = 64;

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

}  // namespace

GenerateSession::GenerateSession(models::LanguageModel& model, const std::vector<Prompt>& prompts,
                                 at::Device device, at::ScalarType dtype, bool images_of_whole_text)
    : model_(model),
      prompts_(prompts),
      device_(device),
      dtype_(dtype),
      images_of_whole_text_(images_of_whole_text),
      cache_(static_cast<std::int64_t>(prompts.size()), longest(prompts) + kFirstRoom) {
  std::vector<at::Tensor> images;
  for (const Prompt& prompt : prompts) {
    require<DataError>(!prompt.ids.empty(), "a prompt needs at least one token");
    if (prompt.images.defined()) images.push_back(prompt.images);
    num_images_.push_back(prompt.images.defined() ? prompt.images.size(0) : 0);
    remembered_.push_back(std::count(prompt.ids.begin(), prompt.ids.end(), model.media_token()));
  }
  images_ = images.empty() ? at::zeros({0, 3, 1, 1}) : at::cat(images);
}

at::Tensor GenerateSession::start() {
  std::vector<std::vector<std::int64_t>> tokens;
  for (const Prompt& prompt : prompts_) tokens.push_back(prompt.ids);
  return forward(tokens, {});
}

at::Tensor GenerateSession::step(const std::vector<std::int64_t>& tokens) {
  require(tokens.size() == remembered_.size(), "a step needs one token for each of ",
          remembered_.size(), " sequences, not ", tokens.size());
  const auto is_image = [this](std::int64_t token) { return token == model_.media_token(); };
  if (images_of_whole_text_) {
    for (std::size_t s = 0; s < tokens.size(); ++s) remembered_[s] += is_image(tokens[s]);
  } else if (std::any_of(tokens.begin(), tokens.end(), is_image)) {
    std::transform(tokens.begin(), tokens.end(), remembered_.begin(), is_image);
  }
  std::vector<std::vector<std::int64_t>> one_each;
  for (const std::int64_t token : tokens) one_each.push_back({token});
  return forward(one_each, at::tensor(remembered_, at::kLong));
}

void GenerateSession::repeat(std::int64_t times) {
  std::vector<std::int64_t> from;
  for (std::int64_t s = 0; s < sequences(); ++s) from.insert(from.end(), times, s);
  keep(from);
}

void GenerateSession::reorder(const std::vector<std::int64_t>& from) {
  cache_.reorder(from);
  if (!images_of_whole_text_) return;
  const std::vector<std::int64_t> before = remembered_;
  for (std::size_t s = 0; s < from.size(); ++s)
    remembered_[s] = before[static_cast<std::size_t>(from[s])];
}

void GenerateSession::keep(const std::vector<std::int64_t>& sequences) {
  const at::Tensor first = offsets(num_images_);
  std::vector<std::int64_t> images, counts, remembered;
  for (const std::int64_t s : sequences) {
    const std::int64_t count = num_images_[static_cast<std::size_t>(s)];
    images.resize(images.size() + static_cast<std::size_t>(count));
    std::iota(images.end() - count, images.end(), first[s].item<std::int64_t>());
    counts.push_back(count);
    remembered.push_back(remembered_[static_cast<std::size_t>(s)]);
  }
  cache_.reorder(sequences);
  num_images_ = std::move(counts);
  remembered_ = std::move(remembered);
  if (images.empty()) return;  // what lies there is seen by nobody
  const at::Tensor index = at::tensor(images, at::kLong);
  images_ = images_.index_select(0, index);
  if (media_.defined()) media_ = media_.index_select(0, index.to(device_));
}

at::Tensor GenerateSession::forward(const std::vector<std::vector<std::int64_t>>& tokens,
                                    const at::Tensor& times) {
  PackedBatch batch;
  std::vector<std::int64_t> ids, positions, lengths;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    ids.insert(ids.end(), tokens[s].begin(), tokens[s].end());
    positions.resize(ids.size());
    std::iota(positions.end() - static_cast<std::ptrdiff_t>(tokens[s].size()), positions.end(),
              cache_.past()[s]);
    lengths.push_back(static_cast<std::int64_t>(tokens[s].size()));
    cache_.reserve(cache_.past()[s] + lengths.back());
  }
  batch.ids = at::tensor(ids, at::kLong);
  batch.positions = at::tensor(positions, at::kLong);
  batch.sequence_offsets = offsets(lengths);
  batch.labels = at::full_like(batch.ids, kNoLabel);
  batch.source = at::zeros({static_cast<std::int64_t>(tokens.size())}, at::kLong);
  batch.images = images_;
  batch.image_offsets = offsets(num_images_);

  models::InputOptions how;
  how.device = device_;
  how.dtype = dtype_;
  how.cache = &cache_;
  how.media_times = times;
  const at::AutoGradMode no_gradients(false);
  const auto input = models::prepare(model_, batch, how);
  const at::Tensor last =
      (batch.sequence_offsets.narrow(0, 1, batch.num_sequences()) - 1).to(device_);
  const at::Tensor logits = nn::call_through(model_.module(), [&] {
    if (model_.media_token() >= 0 && !media_.defined())
      media_ = model_.encode_images(input->images, nullptr);
    const at::Tensor hidden = model_.hidden(*input, media_, nullptr);
    return model_.logits(hidden.index_select(0, last));
  });
  // From now on only their number matters.
  images_ = at::empty({images_.size(0), 3, 0, 0});
  cache_.advance(lengths);
  const at::Tensor result = logits.to(at::kCPU, at::kFloat).contiguous();
  require<DataError>(
      !result.isnan().any().item<bool>(),
      "the model's logits are not numbers (NaN); if it computes in fp16, try bf16 or "
      "fp32, else its weights are broken");
  return result;
}

}  // namespace floe::generation

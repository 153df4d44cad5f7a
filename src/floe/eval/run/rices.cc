#include "floe/eval/run/rices.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "floe/core/error.h"
#include "floe/core/log.h"
#include "floe/io/file/file.h"
#include "floe/models/language_model.h"
#include "floe/requests/request.h"

namespace floe::eval {
namespace {

constexpr std::int64_t kPicturesAtOnce = 64;

// The pooled class token; of a tower without its projection the mean of the tokens.
at::Tensor features_of(models::LanguageModel& model, const at::Tensor& images) {
  models::Stages stages;
  nn::call_through(model.module(), [&] { return model.encode_images(images, &stages); });
  const auto pooled = stages.find("vision_pooled");
  const at::Tensor found =
      pooled != stages.end() ? pooled->second : stages.at("vision_tokens").mean(1);
  return found.to(at::kCPU, at::kFloat);
}

}  // namespace

at::Tensor image_features(const requests::ReadyModel& model,
                          const std::vector<std::string>& pictures) {
  models::LanguageModel& language_model = *model.built.model;
  require<ConfigError>(language_model.image_size() > 0,
                       "contexts of similar images need a model with an image tower; set context: "
                       "random");
  const at::NoGradGuard no_grad;
  const image::TransformOptions options = language_model.picture_options();
  std::vector<at::Tensor> rows;
  for (std::int64_t first = 0; first < std::ssize(pictures); first += kPicturesAtOnce) {
    const std::int64_t end = std::min(std::ssize(pictures), first + kPicturesAtOnce);
    at::Tensor images = at::zeros({end - first, 3, options.size, options.size});
    at::Tensor readable = at::ones({end - first, 1});
    for (std::int64_t p = first; p < end; ++p) try {
        images[p - first].copy_(
            requests::read_picture(pictures[static_cast<std::size_t>(p)], options)[0]);
      } catch (const ResourceError&) {
        throw;
      } catch (const Error& error) {
        log::warn("no features of a picture: ", error.what());
        readable[p - first] = 0;
      }
    const at::Tensor found =
        features_of(language_model, images.to(model.device, model.dtype)) * readable;
    rows.push_back(found / found.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-12));
  }
  return rows.empty() ? at::zeros({0, 1}) : at::cat(rows);
}

std::vector<std::vector<std::size_t>> most_similar(const at::Tensor& asked, const at::Tensor& known,
                                                   std::size_t count) {
  require<ConfigError>(static_cast<std::int64_t>(count) <= known.size(0), "a context of ", count,
                       " samples cannot be found among ", known.size(0));
  std::vector<std::vector<std::size_t>> all;
  for (std::int64_t row = 0; row < asked.size(0); ++row) {
    const at::Tensor similarity = known.matmul(asked[row]);
    const at::Tensor order =
        std::get<1>(similarity.sort(/*stable=*/true, /*dim=*/-1, /*descending=*/true)).contiguous();
    const auto* best = order.const_data_ptr<std::int64_t>();
    auto& nearest = all.emplace_back();
    for (std::size_t k = count; k-- > 0;) nearest.push_back(static_cast<std::size_t>(best[k]));
  }
  return all;
}

}  // namespace floe::eval

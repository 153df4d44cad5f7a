#include "floe/cli/generate_inputs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <charconv>

#include "floe/cli/image_tensors.h"
#include "floe/image/transform.h"
#include "floe/io/file.h"
#include "floe/io/open_tensors.h"

namespace floe::cli {
namespace {

constexpr std::int64_t kMostImageBytes = std::int64_t{1} << 30;

// [1, 3, side, side], as training makes it.
at::Tensor read_picture(const std::string& path, std::int64_t side) {
  const std::string bytes = read_text(path, kMostImageBytes);
  try {
    const image::Image picture = image::decode(std::as_bytes(std::span(bytes)));
    const image::Transform transform({.size = static_cast<int>(side)});
    std::vector<std::uint8_t> crop(transform.crop_bytes());
    transform.crop(picture, crop.data());
    at::Tensor pixels = at::empty({1, 3, side, side});
    transform.normalise(crop.data(), pixels.mutable_data_ptr<float>(), /*flip=*/false);
    return pixels;
  } catch (const DataError& error) {
    throw DataError(str(path, ": ", error.what()));
  }
}

// Row r of the file belongs to prompt r.
void add_tensor_images(const std::string& path, std::vector<models::Prompt>& prompts) {
  const at::Tensor images = read_image_tensors(*open_tensors(path), path);
  require<DataError>(images.defined(), path, ": needs 'vision_x' (float) or 'vision_x_i8'");
  const auto rows = static_cast<std::int64_t>(prompts.size());
  require<ConfigError>(images.size(0) == rows, "generate: ", path, " has images for ",
                       images.size(0), " rows, but there are ", rows,
                       " prompts; give one --ids for each row");
  for (std::int64_t row = 0; row < rows; ++row)
    prompts[static_cast<std::size_t>(row)].images = images[row];
}

// One prompt gets all pictures; several get one for each of their <image>, in order.
void add_pictures(const std::vector<std::string>& paths, const LoadedModel& loaded,
                  std::vector<models::Prompt>& prompts) {
  const models::LanguageModel& model = *loaded.built.model;
  require<ConfigError>(model.media_token() >= 0 || paths.empty(),
                       "generate: --image has no use, the model takes no images");
  if (paths.empty()) return;
  std::vector<std::size_t> counts;
  for (const models::Prompt& prompt : prompts)
    counts.push_back(static_cast<std::size_t>(
        std::count(prompt.ids.begin(), prompt.ids.end(), model.media_token())));
  if (prompts.size() == 1) counts = {paths.size()};
  std::size_t needed = 0;
  for (const std::size_t count : counts) needed += count;
  require<ConfigError>(needed == paths.size(), "generate: ", prompts.size(), " prompts have ",
                       needed, " <image> together, but there are ", paths.size(),
                       " images; give one --image for each <image>, in order");
  auto path = paths.begin();
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    std::vector<at::Tensor> pictures;
    for (std::size_t i = 0; i < counts[p]; ++i)
      pictures.push_back(read_picture(*path++, model.image_size()));
    if (!pictures.empty()) prompts[p].images = at::cat(pictures);
  }
}

}  // namespace

std::vector<std::int64_t> parse_ids(const std::string& text, const std::string& option) {
  std::vector<std::int64_t> ids;
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto skip_spaces = [&] {
    while (at < end && *at == ' ') ++at;
  };
  for (;;) {
    skip_spaces();
    std::int64_t id = 0;
    const auto [behind, error] = std::from_chars(at, end, id);
    at = behind;
    skip_spaces();
    require<ConfigError>(error == std::errc() && id >= 0 && (at == end || *at == ','),
                         "generate: ", option, " is '", text,
                         "', but must be token ids such as 1,2,3");
    ids.push_back(id);
    if (at == end) return ids;
    ++at;
  }
}

void require_prompts(const Options& options) {
  const auto rows = options.values("--ids"), texts = options.values("--prompt");
  require<ConfigError>(rows.empty() != texts.empty(), "generate: give either --ids or --prompt, ",
                       rows.empty() ? "and at least one of them" : "not both");
  require<ConfigError>(
      !options.has("--images") || texts.empty(),
      "generate: --images goes with --ids; with --prompt, name pictures by --image");
  require<ConfigError>(!options.has("--images") || !options.has("--image"),
                       "generate: give either --images or --image, not both");
  require<ConfigError>(!options.has("--pad-id") || texts.empty(),
                       "generate: --pad-id has no use with --prompt, whose tokens have no padding");
}

std::vector<models::Prompt> read_prompts(const Options& options, const LoadedModel& loaded) {
  const auto rows = options.values("--ids"), texts = options.values("--prompt");
  std::vector<models::Prompt> prompts;
  const std::int64_t padding = options.integer("--pad-id", -1, 0, INT64_MAX);
  for (const std::string& row : rows) {
    std::vector<std::int64_t> ids = parse_ids(row, "--ids");
    const auto real = std::find_if(ids.begin(), ids.end(), [&](auto id) { return id != padding; });
    prompts.push_back({{real, ids.end()}, {}});
  }
  require<ConfigError>(
      texts.empty() || loaded.built.tokenizer,
      "generate: --prompt needs a tokenizer, and the model has none; set 'tokenizer:' "
      "in its YAML, or give --ids");
  for (const std::string& text : texts) {
    const auto ids = loaded.built.tokenizer->encode(text);
    prompts.push_back({{ids.begin(), ids.end()}, {}});
  }
  if (const auto path = options.value("--images"))
    add_tensor_images(*path, prompts);
  else
    add_pictures(options.values("--image"), loaded, prompts);
  return prompts;
}

}  // namespace floe::cli

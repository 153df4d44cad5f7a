#include "floe/requests/request.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <span>

#include "floe/config/input_paths.h"
#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/core/names.h"
#include "floe/generation/generate.h"
#include "floe/image/transform.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"

namespace floe::requests {
namespace {

constexpr std::int64_t kMostFileBytes = std::int64_t{1} << 34;
constexpr std::int64_t kMostPictureBytes = std::int64_t{1} << 30;

// What is wrong with a request, and the word to count it by.
class Refused : public DataError {
 public:
  Refused(std::string reason, const std::string& text)
      : DataError(text), reason_(std::move(reason)) {}
  const std::string& reason() const { return reason_; }

 private:
  std::string reason_;
};

template <class... Parts>
void expect(bool condition, const char* reason, const Parts&... parts) {
  if (!condition) throw Refused(reason, str(parts...));
}

// What `parse_json` says of a text of one line in this file, without the file and the line.
std::string about_json(std::string message, const std::string& path) {
  const std::string file = str("'", path, "': "), line = "at line 1, column";
  if (message.starts_with(file)) message.erase(0, file.size());
  if (const auto at = message.find(line); at != std::string::npos)
    message.replace(at, line.size(), "at column");
  return message;
}

void check_keys(const nlohmann::json& json) {
  static const std::vector<std::string> known{"prompt", "ids", "images", "candidates", "id"};
  for (const auto& [key, value] : json.items())
    expect(std::find(known.begin(), known.end(), key) != known.end(), "request", "there is no key ",
           quoted(key), " in a request", did_you_mean(key, known));
}

// As the model takes it, [1, 3, side, side].
at::Tensor decode_picture(std::span<const std::byte> bytes,
                          const image::TransformOptions& options) {
  const image::Image picture = image::decode(bytes);
  const image::Transform transform(options);
  std::vector<std::uint8_t> crop(transform.crop_bytes());
  transform.crop(picture, crop.data());
  at::Tensor pixels = at::empty({1, 3, options.size, options.size});
  transform.normalise(crop.data(), pixels.mutable_data_ptr<float>(), /*flip=*/false);
  return pixels;
}

}  // namespace

at::Tensor read_picture(const std::string& path, const image::TransformOptions& options) {
  const std::string bytes = read_text(path, kMostPictureBytes);
  try {
    return decode_picture(std::as_bytes(std::span(bytes)), options);
  } catch (const DataError& error) {
    throw DataError(str(path, ": ", error.what()));
  }
}

RequestFile::RequestFile(std::string path, const models::BuiltModel& model,
                         const RequestNeeds& needs)
    : RequestSource(model, needs), path_(std::move(path)) {
  require<ConfigError>(path_exists(path_), "there is no file '", path_, "' of requests");
  text_ = read_text(path_, kMostFileBytes);
  const std::string_view text = text_;
  std::size_t number = 1;
  for (std::size_t first = 0; first < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', first), text.size());
    const std::string_view line = text.substr(first, end - first);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) lines_.push_back({number, line});
    first = end + 1;
  }
  require<ConfigError>(!lines_.empty(), "the file '", path_,
                       "' has no requests; it needs a JSON object on each line");
}

std::string RequestFile::digest() const { return hex_digits(crc32(text_), 8); }

std::vector<std::int64_t> RequestSource::ids_of(const nlohmann::json& value,
                                                const std::string& what, bool add_special) const {
  if (value.is_string()) {
    expect(model_.tokenizer != nullptr, "request", what,
           " is text, but the model has no tokenizer; give token ids, or set 'tokenizer:' in its "
           "YAML");
    const auto ids = model_.tokenizer->encode(value.get<std::string>(), add_special);
    return {ids.begin(), ids.end()};
  }
  const auto is_id = [](const nlohmann::json& id) { return id.is_number_integer(); };
  expect(value.is_array() && std::all_of(value.begin(), value.end(), is_id), "request", what,
         " is ", shown(value), ", but must be text or a list of token ids");
  return value.get<std::vector<std::int64_t>>();
}

void RequestSource::find_pictures(Request& request, const nlohmann::json& json,
                                  const std::string& file) const {
  const nlohmann::json images = json.value("images", nlohmann::json::array());
  expect(images.is_array(), "request", "'images' is ", shown(images),
         ", but must be a list of files");
  for (const nlohmann::json& image : images) {
    expect(image.is_string(), "request", "'images' has ", shown(image),
           ", but must be a list of files");
    const auto name = image.get<std::string>();
    expect(name.find('\0') == std::string::npos, "image", "the name ", shown(image),
           " of a picture has a NUL in it");
    request.pictures.push_back(config::find_input(name, file));
    expect(path_exists(request.pictures.back()), "image", "there is no picture '", name, "'",
           name.starts_with("/") ? "" : ": " + config::not_found(name, file));
  }
}

void RequestSource::fill(Request& request, const nlohmann::json& json,
                         const std::string& file) const {
  expect(json.is_object(), "request", "a request must be a JSON object, not ", shown(json));
  if (const auto id = json.find("id"); id != json.end()) request.id = *id;
  check_keys(json);
  expect(json.contains("prompt") != json.contains("ids"), "request",
         "a request needs either 'prompt' or 'ids'", json.contains("prompt") ? ", not both" : "");
  const bool by_ids = json.contains("ids");
  expect(by_ids || json["prompt"].is_string(), "request",
         "'prompt' must be text; give ids as 'ids'");
  expect(!by_ids || json["ids"].is_array(), "request", "'ids' must be a list of token ids");
  request.prompt.ids = ids_of(json[by_ids ? "ids" : "prompt"], by_ids ? "'ids'" : "'prompt'", true);

  find_pictures(request, json, file);
  const models::LanguageModel& model = *model_.model;
  const auto& ids = request.prompt.ids;
  const auto markers =
      model.media_token() < 0 ? 0 : std::count(ids.begin(), ids.end(), model.media_token());
  expect(model.media_token() >= 0 || request.num_pictures() == 0, "image",
         "there are images, but the model takes none");
  expect(markers == request.num_pictures(), "image", "the prompt has ", markers,
         " <image> but there are ", request.num_pictures(), " images; give one for each");

  std::int64_t follow = needs_.new_tokens;
  if (needs_.candidates) {
    const nlohmann::json candidates = json.value("candidates", nlohmann::json());
    expect(candidates.is_array() && !candidates.empty(), "request",
           "'candidates' must be a list with at least one text");
    follow = 1;
    for (std::size_t c = 0; c < candidates.size(); ++c) {
      const std::string name = str("candidate ", c);
      request.candidates.push_back(ids_of(candidates[c], name, false));
      const std::int64_t vocab = model.info().vocab;
      for (const std::int64_t id : request.candidates.back())
        expect(id >= 0 && id < vocab, "candidate", "token ", id, " of ", name,
               " lies outside of the model's vocabulary of ", vocab);
      follow = std::max(follow, std::ssize(request.candidates.back()));
    }
  }
  // Their number was looked at above.
  const generation::Prompt text{ids, at::empty({markers, 3, model.image_size(), model.image_size()},
                                               at::TensorOptions().device(at::kMeta))};
  try {
    generation::check_prompt(model, markers > 0 ? text : request.prompt, "the prompt", follow);
  } catch (const Error& error) {
    throw Refused("prompt", error.what());
  }
}

void RequestSource::take(Request& request, const nlohmann::json& json,
                         const std::string& file) const {
  try {
    fill(request, json, file);
  } catch (const Refused& refused) {
    request.problem = {refused.reason(), request.where + refused.what()};
  } catch (const Error& error) {  // of the tokenizer: text that is not UTF-8
    request.problem = {"request", request.where + error.what()};
  }
}

Request RequestFile::read(std::int64_t number) const {
  const Line& line = lines_[static_cast<std::size_t>(number)];
  Request request;
  request.number = number;
  request.where = str("'", path_, "' line ", line.number, ": ");
  nlohmann::json json;
  try {
    json = parse_json(std::string(line.text), path_);
  } catch (const Error& error) {
    request.problem = {"json", request.where + about_json(error.what(), path_)};
    return request;
  }
  take(request, json, path_);
  return request;
}

std::string RequestList::digest() const {
  std::uint32_t sum = 0;
  for (const nlohmann::json& request : requests_)
    sum = crc32(request.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n", sum);
  return hex_digits(sum, 8);
}

Request RequestList::read(std::int64_t number) const {
  const nlohmann::json& json = requests_[static_cast<std::size_t>(number)];
  Request request;
  request.number = number;
  request.where =
      str(name_, " sample ", json.contains("id") ? shown(json["id"]) : str(number), ": ");
  take(request, json, "");
  return request;
}

void RequestSource::load_pictures(Request& request) const {
  if (request.problem || request.num_pictures() == 0) return;
  const image::TransformOptions options = model_.model->picture_options();
  try {
    std::vector<at::Tensor> pictures;
    for (const std::string& path : request.pictures)
      pictures.push_back(read_picture(path, options));
    for (const auto& bytes : request.encoded) pictures.push_back(decode_picture(bytes, options));
    request.encoded.clear();
    request.prompt.images = at::cat(pictures);
  } catch (const ResourceError&) {
    throw;  // says nothing about the picture
  } catch (const Error& error) {
    request.problem = {"image", request.where + error.what()};
  }
}

}  // namespace floe::requests

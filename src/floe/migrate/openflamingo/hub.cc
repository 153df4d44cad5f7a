#include "floe/migrate/openflamingo/hub.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string_view>

#include "floe/core/str.h"
#include "floe/migrate/page.h"

namespace floe::migrate {
namespace {

// Towers of open_clip by name and weights, and the repository of the Hugging Face hub
// that has them.
struct Tower {
  std::string_view name, weights, repository;
};
constexpr std::array kTowers = {
    Tower{"ViT-B-32", "openai", "openai/clip-vit-base-patch32"},
    Tower{"ViT-B-16", "openai", "openai/clip-vit-base-patch16"},
    Tower{"ViT-L-14", "openai", "openai/clip-vit-large-patch14"},
    Tower{"ViT-L-14-336", "openai", "openai/clip-vit-large-patch14-336"},
    Tower{"ViT-B-32", "laion2b_s34b_b79k", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K"},
    Tower{"ViT-B-16", "laion2b_s34b_b88k", "laion/CLIP-ViT-B-16-laion2B-s34B-b88K"},
    Tower{"ViT-L-14", "laion2b_s32b_b82k", "laion/CLIP-ViT-L-14-laion2B-s32B-b82K"},
    Tower{"ViT-H-14", "laion2b_s32b_b79k", "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"},
    Tower{"ViT-g-14", "laion2b_s12b_b42k", "laion/CLIP-ViT-g-14-laion2B-s12B-b42K"},
    Tower{"ViT-bigG-14", "laion2b_s39b_b160k", "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k"},
};

bool path_is_there(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

}  // namespace

bool is_hub_name(const std::string& text) {
  const auto is_part = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  };
  return !text.empty() && std::isalnum(static_cast<unsigned char>(text[0])) && text.back() != '/' &&
         std::count(text.begin(), text.end(), '/') <= 1 &&
         std::all_of(text.begin(), text.end(), is_part) && !path_is_there(text);
}

TowerFiles find_tower(const std::string& name, const std::string& weights,
                      const std::string& models) {
  constexpr std::string_view kHub = "hf-hub:";
  constexpr const char* kOnDisk = "floe reads it from disk.";
  if (path_is_there(name) || name.starts_with("/") || name.starts_with("."))
    return {name, "", str("The image tower; ", kOnDisk), ""};
  if (path_is_there(weights) || weights.find('/') != std::string::npos)
    return {weights, "",
            "open_clip's checkpoint; put open_clip_config.json into its folder and name that, "
            "unless it is "
            "OpenAI's archive, which says its sizes itself.",
            ""};
  const auto tower = std::find_if(kTowers.begin(), kTowers.end(), [&](const Tower& known) {
    return known.name == name && known.weights == weights;
  });
  const std::string repository = name.starts_with(kHub)   ? name.substr(kHub.size())
                                 : tower != kTowers.end() ? std::string(tower->repository)
                                                          : "";
  if (!repository.empty())
    return {str(models, "/", repository), repository,
            str("The image tower is ", repository, " of the Hugging Face hub; ", kOnDisk), ""};
  const std::string place = str(models, "/", name, "-", weights);
  return {place, "", str("The image tower; ", kOnDisk),
          str("where the hub has the tower ", shell_word(name), " with the weights ",
              shell_word(weights),
              " is not known here; put its folder, with open_clip_config.json, to ",
              shell_word(place))};
}

}  // namespace floe::migrate

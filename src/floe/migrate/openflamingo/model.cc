#include <algorithm>
#include <array>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/migrate/openflamingo/sections.h"

// Models that train.py names lie on disk, or in the Hugging Face hub, from which somebody has to
// download them: floe reads files only.
namespace floe::migrate {
namespace {

using config::Value;

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

// "name" or "owner/name" of the hub, rather than a path.
bool is_hub_name(const std::string& text) {
  const auto is_part = [](unsigned char c) {
    return std::isalnum(c) || c == '-' || c == '_' || c == '.' || c == '/';
  };
  return !text.empty() && std::isalnum(static_cast<unsigned char>(text[0])) && text.back() != '/' &&
         std::count(text.begin(), text.end(), '/') <= 1 &&
         std::all_of(text.begin(), text.end(), is_part) && !path_is_there(text);
}

// An image tower of open_clip.
struct TowerFiles {
  std::string place;       // the folder or file that model.vision names
  std::string repository;  // of the hub, to be downloaded into that folder; empty: nothing is
  std::string what;        // in a sentence
  std::string warning;     // what the reader has to do; empty: nothing
};
// `name` and `weights` as open_clip takes them; `models` is the folder of what is downloaded.
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

// Where a model of the hub will be; says how to bring it.
std::string downloaded(Translation& t, const std::string& models, const std::string& name,
                       const std::string& files) {
  const std::string folder = models + "/" + name;
  const std::string line =
      str("huggingface-cli download ", name, files, " --local-dir ", shell_word(folder));
  t.page.add_preparation(line);
  return folder;
}

void translate_vision(Translation& t, const std::string& models) {
  const std::string path = t.flags.text("--vision_encoder_path");
  require<ConfigError>(!path.empty(),
                       "migrate: --vision_encoder_path is empty; name the image tower");
  const TowerFiles tower = find_tower(path, t.flags.text("--vision_encoder_pretrained"), models);
  if (!tower.repository.empty()) downloaded(t, models, tower.repository, "");
  t.page.set("model.vision", t.flags.value("--vision_encoder_path", tower.place),
             str(t.flags.shown("--vision_encoder_path"), "; ",
                 t.flags.shown("--vision_encoder_pretrained"), ": ", tower.what));
  if (!tower.warning.empty()) t.page.warn(tower.warning);
}

void translate_tokenizer(Translation& t, const std::string& models, const std::string& lm) {
  const std::string path = t.flags.text("--tokenizer_path");
  // Of the default, opt-30b, the weights are 60 GB that nobody needs.
  constexpr const char* kTokenizerFiles =
      " --include 'tokenizer*' 'vocab*' 'merges*' 'special_tokens*' 'added_tokens*'";
  const bool from_hub = path != lm && is_hub_name(path);
  const std::string place = path == lm ? *t.page.tree().at("model.lm")->as<std::string>()
                            : from_hub ? downloaded(t, models, path, kTokenizerFiles)
                                       : path;
  t.page.set("model.tokenizer",
             path == lm ? Value(place, t.flags.origin("--tokenizer_path"))
                        : t.flags.value("--tokenizer_path", place),
             t.comment("--tokenizer_path"));
  if (!t.flags.given("--tokenizer_path") && lm.find("opt", lm.rfind('/') + 1) == std::string::npos)
    t.page.warn(str("--tokenizer_path is not given, and train.py's default, ", path,
                    ", is hardly the tokenizer of ", shell_word(lm),
                    "; if it is not meant, remove model.tokenizer"));
}

}  // namespace

void translate_model(Translation& t, const std::string& models) {
  t.page.set("model.type", Value(std::string("flamingo")), "");
  const std::string lm = t.flags.text("--lm_path");
  require<ConfigError>(!lm.empty(), "migrate: --lm_path is empty; name the language model");
  t.page.set("model.lm",
             t.flags.value("--lm_path", is_hub_name(lm) ? downloaded(t, models, lm, "") : lm),
             t.comment("--lm_path"));
  translate_vision(t, models);
  translate_tokenizer(t, models, lm);
  if (t.is_on("--freeze_lm_embeddings"))
    t.copy("--freeze_lm_embeddings", "model.freeze_lm_embeddings");
  t.page.set(
      "model.dropout", Value(std::string("config")),
      "train.py has no flag for it: the language model's own dropout (of OPT, for one) is on "
      "while it trains. floe's default is 0.");
}

}  // namespace floe::migrate

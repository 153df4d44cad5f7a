#include "floe/models/vision/vision_files.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/hf_config.h"
#include "floe/models/weights/assembled_source.h"

namespace floe::models {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostVisionConfigBytes = 1 << 24;

bool any_begins(const TensorSource& source, const std::string& prefix) {
  const auto names = source.names();
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return name.starts_with(prefix); });
}

// Three numbers for red, green and blue, where the table has them.
void read_colours(const HfConfig& pictures, const std::string& key, std::array<float, 3>& colours) {
  const std::vector<double> numbers = pictures.numbers(key);
  pictures.only(numbers.empty() || numbers.size() == colours.size(), key,
                "three numbers, for red, green and blue");
  std::transform(numbers.begin(), numbers.end(), colours.begin(),
                 [](double number) { return static_cast<float>(number); });
}

// How pictures become tensors beside the tower's size. A picture is resized and cropped in one way
// (image/transform.h); a tower that learned from others would see something else.
void read_open_clip_pictures(const HfConfig& pictures, VisionSpec& spec) {
  read_colours(pictures, "mean", spec.image_mean);
  read_colours(pictures, "std", spec.image_std);
  pictures.only(pictures.text("interpolation", "bicubic") == "bicubic", "interpolation",
                "\"bicubic\"");
  pictures.only(pictures.text("resize_mode", "shortest") == "shortest", "resize_mode",
                "\"shortest\"");
}

void read_hugging_face_pictures(const HfConfig& pictures, VisionSpec& spec) {
  read_colours(pictures, "image_mean", spec.image_mean);
  read_colours(pictures, "image_std", spec.image_std);
  pictures.only(pictures.integer("resample", 3) == 3, "resample", "3 (bicubic)");
  for (const char* key : {"do_normalize", "do_center_crop"})
    pictures.only(pictures.flag(key, true), key, "true");
}

VisionSpec open_clip_spec(const nlohmann::json& json, const std::string& file) {
  const HfConfig whole(json, file);
  const HfConfig model = whole.has("model_cfg") ? whole.section("model_cfg") : whole;
  const HfConfig vision = model.section("vision_cfg");
  vision.only(!vision.has("timm_model_name"), "timm_model_name", "CLIP's own ViT");
  vision.only(!vision.has("ls_init_value"), "ls_init_value", "null");
  vision.only(!vision.flag("attentional_pool", false), "attentional_pool", "false");
  vision.only(!vision.flag("no_ln_pre", false), "no_ln_pre", "false");
  vision.only(vision.text("pool_type", "tok") == "tok", "pool_type", "\"tok\"");
  for (const char* key : {"qk_norm", "scaled_cosine_attn", "scale_heads", "scale_attn_inner",
                          "scale_attn", "scale_fc"})
    vision.only(!vision.flag(key, false), key, "false");
  vision.only(vision.text("pos_embed_type", "learnable") == "learnable", "pos_embed_type",
              "\"learnable\"");
  VisionSpec spec;
  read_open_clip_pictures(whole.section("preprocess_cfg"), spec);
  spec.image_size = vision.side("image_size", 224);
  spec.layers = vision.integer("layers", 12);
  spec.width = vision.integer("width", 768);
  spec.patch = vision.integer("patch_size", 16);
  spec.heads = spec.width / std::max<std::int64_t>(1, vision.integer("head_width", 64));
  spec.mlp_dim =
      static_cast<std::int64_t>(static_cast<double>(spec.width) * vision.number("mlp_ratio", 4));
  spec.norm_eps = vision.section("norm_kwargs").number("eps", 1e-5);
  vision.only(vision.empty("act_kwargs"), "act_kwargs", "null");
  spec.embed_dim = model.integer("embed_dim", 0);
  spec.activation = model.flag("quick_gelu", false) ? Activation::quick_gelu : Activation::gelu;
  return spec;
}

VisionSpec hugging_face_spec(const nlohmann::json& json, const std::string& file) {
  const HfConfig whole(json, file);
  const std::string type = whole.text("model_type", "");
  whole.only(type == "clip" || type == "clip_vision_model", "model_type",
             "\"clip\" or \"clip_vision_model\"");
  // Where older files have both tables, transformers takes the second.
  const char* table = whole.has("vision_config_dict") ? "vision_config_dict" : "vision_config";
  const HfConfig vision = type == "clip" ? whole.section(table) : whole;
  VisionSpec spec;
  read_hugging_face_pictures(whole.section("preprocessor"), spec);
  spec.image_size = vision.side("image_size", 224);
  spec.layers = vision.integer("num_hidden_layers", 12);
  spec.width = vision.integer("hidden_size", 768);
  spec.patch = vision.integer("patch_size", 32);
  spec.heads = vision.integer("num_attention_heads", 12);
  spec.mlp_dim = vision.integer("intermediate_size", 3072);
  spec.embed_dim = whole.integer("projection_dim", 512);
  spec.norm_eps = vision.number("layer_norm_eps", 1e-5);
  spec.activation = vision.activation("hidden_act", "quick_gelu");
  return spec;
}

// Sizes as the shapes tell them; OpenAI's heads are always 64 wide.
VisionSpec spec_from_shapes(const TensorSource& source, const std::string& prefix) {
  const TensorInfo& patches = source.get(prefix + "conv1.weight");
  const TensorInfo& positions = source.get(prefix + "positional_embedding");
  const TensorInfo& mlp = source.get(prefix + "transformer.resblocks.0.mlp.c_fc.weight");
  const TensorInfo& proj = source.get(prefix + "proj");
  require<DataError>(patches.shape.size() == 4 && positions.shape.size() == 2 &&
                         mlp.shape.size() == 2 && proj.shape.size() == 2,
                     "'", prefix,
                     "conv1.weight' and the tensors beside it have not the shapes of a "
                     "CLIP image tower");
  VisionSpec spec;
  spec.width = patches.shape[0];
  spec.patch = patches.shape[3];
  std::int64_t grid = 0;
  while ((grid + 1) * (grid + 1) < positions.shape[0]) ++grid;
  spec.image_size = grid * spec.patch;
  spec.layers = 0;
  while (source.find(str(prefix, "transformer.resblocks.", spec.layers, ".ln_1.weight")))
    ++spec.layers;
  spec.heads = spec.width / 64;
  spec.mlp_dim = mlp.shape[0];
  spec.embed_dim = proj.shape[1];
  return spec;
}

void check(const VisionSpec& spec, const std::string& path) {
  constexpr std::int64_t kMost = 1 << 20;  // products of two stay far from overflow
  require<ConfigError>(spec.patch > 0 && spec.image_size >= spec.patch &&
                           spec.image_size <= kMost && spec.layers > 0 && spec.layers <= kMost &&
                           spec.heads > 0 && spec.width <= kMost && spec.width % spec.heads == 0 &&
                           spec.mlp_dim > 0 && spec.mlp_dim <= kMost && spec.embed_dim <= kMost,
                       path, ": an image tower of ", spec.layers, " layers, width ", spec.width,
                       ", ", spec.heads, " heads and patches of ", spec.patch, " in images of ",
                       spec.image_size, " cannot be built");
}

// The folder's sizes, and whose they are.
void read_config(const std::string& folder, VisionFiles& files) {
  const std::string open_clip = folder + "/open_clip_config.json", hf = folder + "/config.json";
  if (fs::exists(open_clip)) {
    files.spec = open_clip_spec(parse_json(read_text(open_clip, kMostVisionConfigBytes), open_clip),
                                open_clip);
    return;
  }
  require<ConfigError>(
      fs::exists(hf), "model.vision: ", folder,
      " has neither open_clip_config.json nor config.json; name a folder of open_clip "
      "or Hugging Face, or OpenAI's archive itself");
  if (is_exported_flamingo(folder)) {
    const nlohmann::json config = exported_vision_config(folder);
    const bool of_open_clip = config.contains("model_cfg") || config.contains("vision_cfg");
    files.spec = of_open_clip ? open_clip_spec(config, hf) : hugging_face_spec(config, hf);
    return;
  }
  files.spec = hugging_face_spec(parse_json(read_text(hf, kMostVisionConfigBytes), hf), hf);
  if (const std::string pictures = folder + "/preprocessor_config.json"; fs::exists(pictures))
    read_hugging_face_pictures(
        HfConfig(parse_json(read_text(pictures, kMostVisionConfigBytes), pictures), pictures),
        files.spec);
  files.names = VisionNames::hugging_face;
}

// Empty when the folder holds nothing but a configuration; whether that is enough, others decide.
std::string weights_in(const std::string& folder, VisionNames names) {
  bool any = false;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    for (const char* ending : {".safetensors", ".bin", ".pt", ".index.json"})
      any = any || name.ends_with(ending);
  }
  if (!any) return "";
  return find_weights(folder, names == VisionNames::open_clip ? FolderNaming::open_clip
                                                              : FolderNaming::transformers);
}

// The weights' own names decide, not the folder: open_clip's may lie beside either configuration.
void open_weights(const std::string& path, bool configured, VisionFiles& files) {
  const std::shared_ptr<const TensorSource> opened = open_tensors(path);
  files.source = unwrapped(opened, path);
  const TensorSource& source = *files.source;
  if (any_begins(source, "visual.")) {
    files.names = VisionNames::open_clip;
    files.prefix = usual_prefix(files.names);
  } else if (any_begins(source, "vision_model.")) {
    files.names = VisionNames::hugging_face;
    files.prefix = usual_prefix(files.names);
  } else if (source.find("class_embedding")) {
    files.names = VisionNames::open_clip;
  } else {
    throw DataError(str("'", path,
                        "' holds no CLIP image tower; its tensors begin neither with "
                        "'visual.' (open_clip, OpenAI) nor with 'vision_model.' (Hugging Face)"));
  }
  if (!configured) {
    const auto* archive = dynamic_cast<const TorchFile*>(opened.get());
    require<ConfigError>(
        files.names == VisionNames::open_clip && archive && archive->is_torchscript(), path,
        ": says nothing of its activation; name the folder that holds it "
        "together with open_clip_config.json or config.json");
    files.spec = spec_from_shapes(source, files.prefix);
  }
  const bool open_clip = files.names == VisionNames::open_clip;
  if (!source.find(open_clip ? files.prefix + "proj" : "visual_projection.weight"))
    files.spec.embed_dim = 0;
}

}  // namespace

VisionFiles open_vision(const std::string& path) {
  VisionFiles files;
  files.path = path;
  require<ConfigError>(fs::exists(path), "model.vision: there is no file or folder '", path, "'");
  const bool folder = fs::is_directory(path);
  if (folder) read_config(path, files);
  if (folder && is_exported_flamingo(path)) {
    files.source = exported_vision_weights(path);
    if (files.source && !files.source->find("proj")) files.spec.embed_dim = 0;
    check(files.spec, path);
    return files;
  }
  const std::string weights = folder ? weights_in(path, files.names) : path;
  if (!weights.empty()) open_weights(weights, folder, files);
  check(files.spec, path);
  return files;
}

std::string usual_prefix(VisionNames names) {
  return names == VisionNames::open_clip ? "visual." : "vision_model.";
}

VisionTensor vision_tensor(VisionNames names, const std::string& prefix,
                           const std::string& parameter) {
  if (names == VisionNames::open_clip) return {{prefix + parameter}};
  if (parameter == "proj") return {{"visual_projection.weight"}, true};
  const auto named = [&](const std::string& name) { return VisionTensor{{prefix + name}}; };
  if (parameter == "class_embedding") return named("embeddings.class_embedding");
  if (parameter == "positional_embedding") return named("embeddings.position_embedding.weight");
  if (parameter == "conv1.weight") return named("embeddings.patch_embedding.weight");
  if (parameter.starts_with("ln_pre.")) return named("pre_layrnorm." + parameter.substr(7));
  if (parameter.starts_with("ln_post.")) return named("post_layernorm." + parameter.substr(8));
  constexpr std::string_view kBlocks = "transformer.resblocks.";
  const std::string rest = parameter.substr(kBlocks.size());
  const auto dot = rest.find('.');
  const std::string layer = prefix + "encoder.layers." + rest.substr(0, dot) + ".";
  const std::string part = rest.substr(dot + 1);
  if (part == "attn.in_proj_weight" || part == "attn.in_proj_bias") {
    const std::string kind = part.substr(part.rfind('_') + 1);
    VisionTensor all;
    for (const char* one : {"q_proj.", "k_proj.", "v_proj."})
      all.names.push_back(layer + "self_attn." + one + kind);
    return all;
  }
  static const std::vector<std::pair<std::string, std::string>> renamed{
      {"ln_1.", "layer_norm1."},
      {"ln_2.", "layer_norm2."},
      {"attn.out_proj.", "self_attn.out_proj."},
      {"mlp.c_fc.", "mlp.fc1."},
      {"mlp.c_proj.", "mlp.fc2."},
  };
  for (const auto& [ours, theirs] : renamed)
    if (part.starts_with(ours)) return {{layer + theirs + part.substr(ours.size())}};
  return {{layer + part}};
}

}  // namespace floe::models

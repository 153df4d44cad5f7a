#include "floe/models/weights/save.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/flamingo/flamingo.h"
#include "floe/models/lora/lora.h"
#include "floe/models/weights/file_layouts.h"
#include "floe/nn/load.h"

namespace floe::models {
namespace {

namespace fs = std::filesystem;

// Work that only the writing rank does. Its first error is kept until everything has been fetched.
class Writing {
 public:
  Writing(bool on, const Preparation& prepare) : on_(on) {
    if (prepare) run(prepare);
  }
  template <class F>
  void run(F&& work) {
    if (!on_ || error_) return;
    try {
      work();
    } catch (...) {
      error_ = std::current_exception();
    }
  }
  bool on() const { return on_ && !error_; }
  void end() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  bool on_;
  std::exception_ptr error_;
};

// A sink is empty when there is nothing to write; an error inside of it must not stop the fetching.
SavedTensorReader::Sink guarded(Writing& writing, SavedTensorReader::Sink sink) {
  if (!writing.on()) return {};
  return [&writing, sink = std::move(sink)](std::span<const std::byte> bytes) {
    writing.run([&] { sink(bytes); });
  };
}

using Group = std::vector<const SavedTensor*>;

std::int64_t bytes_of(const SavedTensor& tensor, const SaveOptions& options) {
  return tensor.numel() * size_of(saved_dtype(tensor, options)) *
         static_cast<std::int64_t>(1 + tensor.copies.size());
}

void write_one(const Group& tensors, const std::string& path, SavedTensorReader& reader,
               const SaveOptions& options, Writing& writing) {
  std::unique_ptr<SafetensorsWriter> file;
  const auto each_name = [](const SavedTensor& tensor, auto&& f) {
    f(tensor.name);
    for (const std::string& copy : tensor.copies) f(copy);
  };
  writing.run([&] {
    file = std::make_unique<SafetensorsWriter>(path, Metadata{{"format", "pt"}});
    for (const SavedTensor* tensor : tensors)
      each_name(*tensor, [&](const std::string& name) {
        file->declare(name, saved_dtype(*tensor, options), tensor->shape);
      });
  });
  for (const SavedTensor* tensor : tensors)
    reader.read(*tensor, saved_dtype(*tensor, options),
                guarded(writing, [&](std::span<const std::byte> bytes) {
                  each_name(*tensor, [&](const std::string& name) { file->write(name, bytes); });
                }));
  writing.run([&] { file->finish(); });
}

Group all_of(const std::vector<SavedTensor>& tensors) {
  Group group;
  for (const SavedTensor& tensor : tensors) group.push_back(&tensor);
  return group;
}

std::vector<Group> split(const std::vector<SavedTensor>& tensors, const SaveOptions& options) {
  std::vector<Group> shards;
  std::int64_t filled = 0;
  for (const SavedTensor& tensor : tensors) {
    const std::int64_t bytes = bytes_of(tensor, options);
    if (shards.empty() || filled + bytes > options.max_shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(&tensor);
    filled += bytes;
  }
  return shards;
}

void write_json(const std::string& path, const nlohmann::ordered_json& value) {
  write_file_atomically(path, value.dump(2) + "\n");
}

// As torch's attribute is called.
std::string torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    default: return "float32";
  }
}

// Makes the folder. Weights of another save would win over these, or be taken for parts of them.
void prepare_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  require<ConfigError>(fs::is_directory(folder), "'", folder,
                       "' cannot be made a folder: ", error.message());
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    require<ConfigError>(!name.ends_with(".safetensors") && !name.ends_with(".bin") &&
                             !name.ends_with(".index.json"),
                         "'", folder, "' holds weights already (", name,
                         "); name a new folder, or remove them");
  }
}

// That of the folder, with the vocabulary and type that were written.
nlohmann::ordered_json written_lm_config(const std::string& lm_folder, std::int64_t vocab,
                                         DType dtype) {
  nlohmann::ordered_json config = lm_config(lm_folder);
  config["vocab_size"] = vocab;
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = torch_name(dtype);
  return config;
}

// The type of most bytes.
DType main_dtype(const std::vector<SavedTensor>& tensors, const SaveOptions& options) {
  std::map<DType, std::int64_t> numel;
  for (const SavedTensor& tensor : tensors) numel[saved_dtype(tensor, options)] += tensor.numel();
  DType best = DType::f32;
  for (const auto& [dtype, count] : numel)
    if (count > numel[best]) best = dtype;
  return best;
}

const VisionSpec& vision_spec(const LanguageModel& model) {
  const auto* flamingo = dynamic_cast<const Flamingo*>(&model);
  require<ConfigError>(flamingo != nullptr, "the model has no image tower that could be saved");
  return flamingo->spec().vision;
}

// Of floats as they are written: 0.4814…, not its neighbour among doubles.
nlohmann::ordered_json numbers_of(const std::array<float, 3>& values) {
  nlohmann::ordered_json numbers;
  for (const float value : values) {
    std::array<char, 32> text{};
    std::to_chars(text.begin(), text.end(), value);
    numbers.push_back(std::strtod(text.data(), nullptr));
  }
  return numbers;
}

// What CLIPImageProcessor reads.
nlohmann::ordered_json preprocessor_config(const VisionSpec& spec) {
  return {{"image_processor_type", "CLIPImageProcessor"},
          {"do_resize", true},
          {"size", {{"shortest_edge", spec.image_size}}},
          {"resample", 3},
          {"do_center_crop", true},
          {"crop_size", {{"height", spec.image_size}, {"width", spec.image_size}}},
          {"do_rescale", true},
          {"do_normalize", true},
          {"do_convert_rgb", true},
          {"image_mean", numbers_of(spec.image_mean)},
          {"image_std", numbers_of(spec.image_std)}};
}

// The narrowest ratio that open_clip's int(width * ratio) makes the width of the MLP.
double mlp_ratio(const VisionSpec& spec) {
  const auto width = static_cast<double>(spec.width), wanted = static_cast<double>(spec.mlp_dim);
  const double ratio = wanted / width;
  return width * ratio < wanted ? std::nextafter(ratio, wanted) : ratio;
}

nlohmann::ordered_json open_clip_config(const VisionSpec& spec) {
  return {{"model_cfg",
           {{"embed_dim", spec.embed_dim > 0 ? spec.embed_dim : spec.width},
            {"quick_gelu", spec.activation == Activation::quick_gelu},
            {"vision_cfg",
             {{"image_size", spec.image_size},
              {"layers", spec.layers},
              {"width", spec.width},
              {"head_width", spec.width / spec.heads},
              {"patch_size", spec.patch},
              {"mlp_ratio", mlp_ratio(spec)},
              {"norm_kwargs", {{"eps", spec.norm_eps}}}}},
            {"text_cfg", nlohmann::ordered_json::object()}}},
          {"preprocess_cfg",
           {{"mean", numbers_of(spec.image_mean)},
            {"std", numbers_of(spec.image_std)},
            {"interpolation", "bicubic"},
            {"resize_mode", "shortest"}}}};
}

// Open_clip's towers have no other activations.
bool fits_open_clip(const VisionSpec& spec) {
  return spec.activation == Activation::quick_gelu || spec.activation == Activation::gelu;
}

const char* hugging_face_name(Activation activation) {
  switch (activation) {
    case Activation::relu: return "relu";
    case Activation::gelu: return "gelu";
    case Activation::gelu_tanh: return "gelu_pytorch_tanh";
    case Activation::quick_gelu: return "quick_gelu";
    case Activation::silu: return "silu";
  }
  return "";
}

nlohmann::ordered_json clip_vision_config(const VisionSpec& spec, DType dtype) {
  nlohmann::ordered_json config{
      {"architectures", {spec.embed_dim > 0 ? "CLIPVisionModelWithProjection" : "CLIPVisionModel"}},
      {"model_type", "clip_vision_model"},
      {"image_size", spec.image_size},
      {"patch_size", spec.patch},
      {"hidden_size", spec.width},
      {"intermediate_size", spec.mlp_dim},
      {"num_hidden_layers", spec.layers},
      {"num_attention_heads", spec.heads},
      {"num_channels", 3},
      {"hidden_act", hugging_face_name(spec.activation)},
      {"layer_norm_eps", spec.norm_eps},
      {"torch_dtype", torch_name(dtype)},
  };
  if (spec.embed_dim > 0) config["projection_dim"] = spec.embed_dim;
  return config;
}

nlohmann::ordered_json adapter_config(const LoraConfig& config, const std::string& base_model,
                                      const std::vector<std::string>& modules, bool causal) {
  return {
      {"peft_type", "LORA"},
      {"task_type", causal ? nlohmann::ordered_json("CAUSAL_LM") : nlohmann::ordered_json()},
      {"base_model_name_or_path", base_model},
      {"r", config.rank},
      {"lora_alpha", config.alpha},
      {"lora_dropout", config.dropout},
      {"use_rslora", config.rslora},
      {"target_modules", modules},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"modules_to_save", nullptr},
  };
}

// One safetensors file.
void write_safetensors(const std::vector<SavedTensor>& tensors, const std::string& path,
                       const WholeParameter& whole, const SaveOptions& options,
                       const Preparation& prepare = {}) {
  SavedTensorReader reader(whole, options.source);
  Writing writing(options.write, prepare);
  write_one(all_of(tensors), path, reader, options, writing);
  writing.end();
}

// One file of torch.save with a bare state dict.
void write_torch_file(const std::vector<SavedTensor>& tensors, const std::string& path,
                      const WholeParameter& whole, const SaveOptions& options) {
  SavedTensorReader reader(whole, options.source);
  Writing writing(options.write, nullptr);
  std::unique_ptr<TorchFileWriter> file;
  writing.run([&] { file = std::make_unique<TorchFileWriter>(path); });
  pickle::Entries entries;
  for (const SavedTensor& tensor : tensors) {
    const DType dtype = saved_dtype(tensor, options);
    writing.run([&] {
      const pickle::Value value = file->declare(tensor.name, dtype, tensor.shape);
      entries.emplace_back(tensor.name, value);
      for (const auto* names : {&tensor.copies, &tensor.second_names})
        for (const std::string& name : *names) entries.emplace_back(name, value);
    });
    reader.read(tensor, dtype, guarded(writing, [&](std::span<const std::byte> bytes) {
                  file->write(tensor.name, bytes);
                }));
  }
  writing.run([&] { file->finish(pickle::ordered_dict(std::move(entries))); });
  writing.end();
}

}  // namespace

DType saved_dtype(const SavedTensor& tensor, const SaveOptions& options) {
  const TensorInfo* info =
      options.source ? options.source->find(tensor.runs.at(0).parameter) : nullptr;
  const DType own = info ? info->dtype : DType::f32;
  return options.dtype && at::isFloatingType(nn::torch_dtype(own)) ? *options.dtype : own;
}

void write_file(const std::vector<SavedTensor>& tensors, const std::string& path,
                const WholeParameter& whole, const SaveOptions& options) {
  const bool safetensors = path.ends_with(".safetensors");
  require<ConfigError>(
      safetensors || path.ends_with(".pt") || path.ends_with(".pth"), "'", path,
      "': weights are saved as .safetensors, .pt or .pth; choose one of these endings");
  if (safetensors)
    write_safetensors(tensors, path, whole, options);
  else
    write_torch_file(tensors, path, whole, options);
}

void write_shards(const std::vector<SavedTensor>& tensors, const std::string& folder,
                  const WholeParameter& whole, const SaveOptions& options,
                  const Preparation& prepare) {
  const std::vector<Group> shards = split(tensors, options);
  SavedTensorReader reader(whole, options.source);
  Writing writing(options.write, prepare);
  nlohmann::json weight_map = nlohmann::json::object();
  std::int64_t total = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    char name[64] = "model.safetensors";
    if (shards.size() > 1)
      std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    write_one(shards[i], folder + "/" + name, reader, options, writing);
    for (const SavedTensor* tensor : shards[i]) {
      weight_map[tensor->name] = name;
      for (const std::string& copy : tensor->copies) weight_map[copy] = name;
      total += bytes_of(*tensor, options);
    }
  }
  if (shards.size() > 1)
    writing.run([&] {
      const nlohmann::json index{{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
      write_file_atomically(folder + "/model.safetensors.index.json", index.dump(2) + "\n");
    });
  writing.end();
}

void copy_companions(const std::string& from, const std::string& to) {
  static const char* const names[] = {
      "generation_config.json",
      "tokenizer.json",
      "tokenizer_config.json",
      "special_tokens_map.json",
      "added_tokens.json",
      "tokenizer.model",
      "vocab.json",
      "vocab.txt",
      "merges.txt",
      "chat_template.jinja",
      "preprocessor_config.json",
  };
  if (fs::equivalent(from, to)) return;
  for (const char* name : names)
    if (fs::exists(from + "/" + name))
      fs::copy_file(from + "/" + name, to + "/" + name, fs::copy_options::overwrite_existing);
  // Code that config.json names (`auto_map`); it is copied as text and never run by floe.
  for (const auto& entry : fs::directory_iterator(from))
    if (entry.path().extension() == ".py")
      fs::copy_file(entry.path(), to / entry.path().filename(),
                    fs::copy_options::overwrite_existing);
}

void save_language_model(LanguageModel& model, const std::string& lm_folder,
                         const std::string& folder, const WholeParameter& whole,
                         const SaveOptions& options) {
  const std::vector<SavedTensor> tensors = language_model_layout(model);
  write_shards(tensors, folder, whole, options, [&] {
    prepare_folder(folder);
    write_json(folder + "/config.json",
               written_lm_config(lm_folder, model.info().vocab, main_dtype(tensors, options)));
    copy_companions(lm_folder, folder);
  });
}

void save_flamingo_config(LanguageModel& model, const ModelConfig& config, bool with_adapters,
                          const std::string& folder, const SaveOptions& options) {
  const DType dtype = main_dtype(flamingo_layout(model), options);
  const FlamingoSpec& spec = dynamic_cast<const Flamingo&>(model).spec();
  nlohmann::ordered_json vision = open_clip_config(spec.vision);
  if (!fits_open_clip(spec.vision)) {
    vision = clip_vision_config(spec.vision, dtype);
    vision["preprocessor"] = preprocessor_config(spec.vision);
  }
  write_json(folder + "/config.json",
             exported_config(config, spec, written_lm_config(config.lm, spec.lm.vocab, dtype),
                             vision, with_adapters));
}

void save_trained_part(LanguageModel& model, const std::string& path, const WholeParameter& whole,
                       const SaveOptions& options) {
  write_file(trained_part_layout(model), path, whole, options);
}

void save_flamingo(LanguageModel& model, const std::string& path, const WholeParameter& whole,
                   const SaveOptions& options) {
  vision_spec(model);  // a Flamingo
  write_file(flamingo_layout(model), path, whole, options);
}

void save_vision(LanguageModel& model, VisionNames names, const std::string& folder,
                 const WholeParameter& whole, const SaveOptions& options) {
  const VisionSpec& spec = vision_spec(model);
  const std::vector<SavedTensor> tensors = vision_layout(model, names);
  if (names == VisionNames::hugging_face) {
    write_shards(tensors, folder, whole, options, [&] {
      prepare_folder(folder);
      write_json(folder + "/config.json", clip_vision_config(spec, main_dtype(tensors, options)));
      write_json(folder + "/preprocessor_config.json", preprocessor_config(spec));
    });
    return;
  }
  require<ConfigError>(
      fits_open_clip(spec),
      "open_clip's towers have GELU or quick-GELU, this one has another activation; "
      "save it in Hugging Face's layout");
  write_safetensors(tensors, folder + "/open_clip_model.safetensors", whole, options, [&] {
    prepare_folder(folder);
    write_json(folder + "/open_clip_config.json", open_clip_config(spec));
  });
}

void save_peft(LanguageModel& model, const LoraConfig& config, const std::string& base_model,
               const std::string& folder, const WholeParameter& whole, const SaveOptions& options) {
  const std::vector<AdaptedLinear> adapted = adapted_linears(model.module());
  require<ConfigError>(!adapted.empty(), "the model has no adapters; configure model.lora");
  std::vector<SavedTensor> tensors;
  std::vector<std::string> modules, outside;
  for (const AdaptedLinear& linear : adapted) {
    if (is_vision(linear.path) || is_flamingo_own(linear.path + "."))
      outside.push_back(linear.path);
    modules.push_back(hf_name(linear.path));
    for (const char* part : {"lora_A", "lora_B"}) {
      const std::string name = str(linear.path, ".", part, ".weight");
      const std::int64_t rank = linear.options.rank;
      SavedTensor tensor{.name = str("base_model.model.", hf_name(name))};
      tensor.shape = part == std::string("lora_A") ? std::vector{rank, linear.in}
                                                   : std::vector{linear.out, rank};
      tensor.runs.push_back({name, 0, tensor.numel()});
      tensors.push_back(std::move(tensor));
    }
  }
  require<ConfigError>(outside.empty(),
                       "PEFT's folders hold adapters of a language model, not that of '",
                       outside.empty() ? "" : outside[0],
                       "'; save the trained part in OpenFlamingo's layout instead");
  SaveOptions written = options;
  if (!written.dtype) written.dtype = DType::f32;
  write_safetensors(tensors, folder + "/adapter_model.safetensors", whole, written, [&] {
    fs::create_directories(folder);
    write_json(folder + "/adapter_config.json",
               adapter_config(config, base_model, modules, model.info().causal));
  });
}

}  // namespace floe::models

#include <ATen/ATen.h>

#include <iostream>

#include "floe/cli/loaded_model.h"
#include "floe/io/file/file.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/tensors/open_tensors.h"
#include "floe/models/decoders/decoder.h"
#include "floe/models/weights/file_layouts.h"
#include "floe/nn/load.h"

namespace floe::cli {
namespace {

class Outputs {
 public:
  void add(const std::string& name, const at::Tensor& value) {
    tensors_[name] = value.detach().to(at::kCPU, at::kFloat).contiguous();
  }
  void write(const std::string& path) const {
    SafetensorsWriter writer(path);
    for (const auto& [name, tensor] : tensors_)
      writer.declare(name, DType::f32, tensor.sizes().vec());
    for (const auto& [name, tensor] : tensors_)
      writer.write(name, {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    writer.finish();
  }

 private:
  std::map<std::string, at::Tensor> tensors_;
};

at::Tensor read(const TensorSource& inputs, const std::string& name) {
  const TensorInfo* info = inputs.find(name);
  return info ? nn::read_tensor(inputs, *info) : at::Tensor();
}

// Gradients under OpenFlamingo's names.
void add_gradients(LoadedModel& loaded, Outputs& outputs) {
  const models::Decoder* decoder = loaded.built.model->decoder();
  for (const auto& parameter : nn::named_parameters(*loaded.built.module)) {
    if (!parameter.tensor.requires_grad()) continue;
    const at::Tensor gradient = parameter.tensor.grad().defined()
                                    ? parameter.tensor.grad()
                                    : at::zeros_like(parameter.tensor);
    if (models::is_rows(parameter.name)) {
      const auto& embedding = decoder->embedding();
      const std::string table = parameter.name.substr(0, parameter.name.size() - 4) + "weight";
      const at::Tensor rows =
          at::tensor(embedding->trained_rows(), at::kLong).to(gradient.device());
      outputs.add("grad." + table,
                  at::zeros_like(embedding->weight()).index_copy_(0, rows, gradient));
    } else {
      outputs.add("grad." + parameter.name, gradient);
    }
  }
}

void add_stages(const models::Stages& stages, std::int64_t rows, std::int64_t slots,
                Outputs& outputs) {
  for (const auto& [name, value] : stages) {
    if (name.starts_with("layer"))
      outputs.add(name, value.view({rows, -1, value.size(1)}));
    else if (name == "perceiver_out")
      outputs.add(
          name, value.narrow(0, 0, rows * slots).view({rows, slots, value.size(1), value.size(2)}));
    else
      outputs.add(name, value.narrow(0, 0, rows * slots));
  }
}

// What INPUTS has; labels and images may be undefined.
struct InputRows {
  at::Tensor ids, mask;  // [B, T]
  at::Tensor labels;     // [B, T]
  at::Tensor images;     // [B, images, 1, 3, H, W]
};

InputRows read_rows(const std::string& path, bool with_images, bool needs_labels) {
  require<ConfigError>(path_exists(path), "forward: there is no file '", path, "' of inputs");
  const auto inputs = open_tensors(path);
  InputRows rows{.ids = read(*inputs, "lang_x"),
                 .mask = read(*inputs, "attention_mask"),
                 .labels = read(*inputs, "labels"),
                 .images = {}};
  require<DataError>(rows.ids.defined() && rows.ids.dim() == 2, path,
                     ": needs 'lang_x' with the shape [B, T]");
  if (!rows.mask.defined()) rows.mask = at::ones_like(rows.ids);
  const at::Tensor images = read_image_tensors(*inputs, path);
  require<DataError>(images.defined() || !with_images, path,
                     ": needs 'vision_x' (float) or 'vision_x_i8' for a model with images");
  require<DataError>(rows.labels.defined() || !needs_labels, path,
                     ": has no 'labels', which --grads needs");
  if (with_images) rows.images = images;
  return rows;
}

PackedBatch batch_of(const InputRows& rows, const models::ModelInfo& info, bool packed) {
  PackedBatch batch = models::from_rows(rows.ids, rows.mask, rows.labels, rows.images, !packed);
  // transformers gives padded places the position before the first.
  if (batch.attended.defined() && info.position_rows > 0 && info.causal)
    batch.positions.masked_fill_(batch.attended.logical_not(), -1)
        .clamp_min_(-info.position_offset);
  return batch;
}

using Input = std::shared_ptr<const models::ModelInput>;

void add_logits(models::LanguageModel& model, const Input& input, const InputRows& rows,
                bool packed, bool with_stages, Outputs& outputs) {
  const at::AutoGradMode grad_off(false);
  models::Stages stages;
  at::Tensor logits =
      models::all_logits(model, input, with_stages ? &stages : nullptr).to(at::kFloat);
  const std::int64_t vocabulary = logits.size(1);
  if (packed)
    logits = at::zeros({rows.ids.numel(), vocabulary}, logits.options())
                 .index_put_({rows.mask.ne(0).reshape({-1}).to(logits.device())}, logits);
  outputs.add("logits", logits.view({rows.ids.size(0), rows.ids.size(1), vocabulary}));
  if (with_stages)
    add_stages(stages, rows.ids.size(0), rows.images.defined() ? rows.images.size(1) : 0, outputs);
}

void add_loss(LoadedModel& loaded, const Input& input, bool with_gradients, Outputs& outputs) {
  const at::AutoGradMode grad(with_gradients);
  const at::Tensor loss = std::get<0>(models::training_loss(*loaded.built.model, input));
  outputs.add("loss", loss.reshape({1}));
  if (with_gradients) {
    loss.backward();
    add_gradients(loaded, outputs);
  }
  std::cout << "loss " << loss.item<float>() << "\n";
}

Exit run_forward(const Args& args) {
  const Options options(kForwardCommand, args);
  const Words words = split_words(options.words());
  require<ConfigError>(words.paths.size() == 3,
                       "forward: expected MODEL INPUTS.safetensors OUTPUTS.safetensors, got ",
                       words.paths.size(), " paths; 'floe forward --help' shows them");
  const bool packed = options.has("--packed"), with_gradients = options.has("--grads");
  require<ConfigError>(!packed || !options.has("--stages"),
                       "forward: --stages needs every place of the rows; leave out --packed");
  LoadedModel loaded = load_model("forward", words.paths[0], words.changes, options);
  models::LanguageModel& model = *loaded.built.model;
  const InputRows rows =
      read_rows(words.paths[1], /*with_images=*/model.media_token() >= 0, with_gradients);

  models::InputOptions how;
  how.device = loaded.device;
  how.dtype = loaded.dtype;
  const Input input = models::prepare(model, batch_of(rows, model.info(), packed), how);
  Outputs outputs;
  add_logits(model, input, rows, packed, options.has("--stages"), outputs);
  if (rows.labels.defined()) add_loss(loaded, input, with_gradients, outputs);
  outputs.write(words.paths[2]);
  return Exit::done;
}

}  // namespace

const Command kForwardCommand{
    .name = "forward",
    .summary = "numbers of one forward pass, to compare with a reference",
    .about =
        R"(usage: floe forward MODEL INPUTS.safetensors OUTPUTS.safetensors [key=value] [options]

One forward pass whose numbers can be compared with those of another system.

INPUTS has lang_x [B, T] (token ids) and may have attention_mask [B, T] (1: real, 0: padding),
labels [B, T] (-100: none) and, for a model with images, vision_x [B, images, 1, 3, H, W] (float) or
vision_x_i8 (int8, divided by 64). OUTPUTS gets logits [B, T, V] and, with labels, loss.
)",
    .options =
        {
            dtype_option(),
            device_option(),
            {"--stages", "",
             "intermediate values as well: vision_tokens, perceiver_out, "
             "layer<i>.gated_cross_attn_out, layer<i>.decoder_out, ..."},
            {"--grads", "",
             "gradients of the loss with respect to what trains, as grad.<name>; the input "
             "embedding as a whole table, zero where it is frozen"},
            {"--packed", "", "leave padding out before computing; logits there are then 0"},
        },
    .closing =
        R"(MODEL is a run folder (its newest checkpoint is used, and named on stderr), a checkpoint, an exported
folder, or a YAML: a training configuration or its block 'model:' alone. key=value, ++key=value and
~key change the configuration; where a run's base files have moved: model.lm=PATH.

  floe forward runs/demo inputs.safetensors outputs.safetensors
)",
    .words = "PATH",
    .keys = keys_of_a_run,
    .run = run_forward,
};

}  // namespace floe::cli

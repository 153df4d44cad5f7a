#include "floe/models/weights/tensor_writers.h"

#include <cstdio>
#include <exception>
#include <memory>
#include <nlohmann/json.hpp>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/safetensors/safetensors.h"
#include "floe/io/torch_file/torch_file.h"
#include "floe/nn/load.h"

namespace floe::models {
namespace {

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

}  // namespace

DType saved_dtype(const SavedTensor& tensor, const SaveOptions& options) {
  const TensorInfo* info =
      options.source ? options.source->find(tensor.runs.at(0).parameter) : nullptr;
  const DType own = info ? info->dtype : DType::f32;
  return options.dtype && at::isFloatingType(nn::torch_dtype(own)) ? *options.dtype : own;
}

void write_safetensors(const std::vector<SavedTensor>& tensors, const std::string& path,
                       const WholeParameter& whole, const SaveOptions& options,
                       const Preparation& prepare) {
  SavedTensorReader reader(whole, options.source);
  Writing writing(options.write, prepare);
  write_one(all_of(tensors), path, reader, options, writing);
  writing.end();
}

void write_torch_file(const std::vector<SavedTensor>& tensors, const std::string& path,
                      const WholeParameter& whole, const SaveOptions& options,
                      const Preparation& prepare) {
  SavedTensorReader reader(whole, options.source);
  Writing writing(options.write, prepare);
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

}  // namespace floe::models

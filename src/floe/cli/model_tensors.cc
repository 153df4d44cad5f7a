#include "floe/cli/model_tensors.h"

#include <cstring>
#include <map>

#include "floe/io/renamed_source.h"
#include "floe/models/assembled_source.h"
#include "floe/models/file_layouts.h"
#include "floe/models/tensor_writers.h"

namespace floe::cli {
namespace {

class LayoutSource : public TensorSource {
 public:
  LayoutSource(models::BuiltModel built, std::uint64_t seed, bool flamingo)
      : built_(std::move(built)), source_(with_new_ones(built_, seed)) {
    const models::SaveOptions options{.source = source_.get()};
    for (models::SavedTensor& tensor : flamingo ? models::flamingo_layout(*built_.model)
                                                : models::language_model_layout(*built_.model)) {
      TensorInfo info{.name = tensor.name, .shape = tensor.shape};
      info.dtype = models::saved_dtype(tensor, options);
      const std::string name = tensor.name;
      tensors_.emplace(name, Entry{std::move(info), std::move(tensor)});
    }
  }

  std::vector<std::string> names() const override { return names_in(tensors_); }
  const TensorInfo* find(const std::string& name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second.info;
  }
  void read(const TensorInfo& tensor, std::int64_t first, std::int64_t count,
            std::span<std::byte> out) const override {
    const std::lock_guard lock(mutex_);
    if (held_ != tensor.name) {
      bytes_.clear();
      held_.clear();
      models::SavedTensorReader reader({}, source_.get());
      reader.read(tensors_.at(tensor.name).tensor, tensor.dtype,
                  [&](std::span<const std::byte> piece) {
                    bytes_.insert(bytes_.end(), piece.begin(), piece.end());
                  });
      held_ = tensor.name;
    }
    const auto size = static_cast<std::int64_t>(size_of(tensor.dtype));
    std::memcpy(out.data(), bytes_.data() + first * size, static_cast<std::size_t>(count * size));
  }

 private:
  struct Entry {
    TensorInfo info;
    models::SavedTensor tensor;
  };

  models::BuiltModel built_;
  std::shared_ptr<const TensorSource> source_;
  std::map<std::string, Entry> tensors_;
  mutable std::mutex mutex_;
  mutable std::string held_;
  mutable std::vector<std::byte> bytes_;
};

}  // namespace

std::shared_ptr<const TensorSource> with_new_ones(const models::BuiltModel& built,
                                                  std::uint64_t seed) {
  auto made = std::make_shared<models::AssembledSource>(seed);
  for (const nn::NamedParameter& parameter : nn::named_parameters(*built.module)) {
    if (built.source->find(parameter.name)) continue;
    made->add(parameter.name, parameter.tensor.sizes().vec(), DType::f32,
              {{.init = *parameter.init,
                .seed_name = parameter.name,
                .count = parameter.tensor.numel()}});
  }
  return std::make_shared<MergedSource>(
      std::vector<std::shared_ptr<const TensorSource>>{built.source, made});
}

std::shared_ptr<const TensorSource> model_tensors(const UsedModel& used) {
  return std::make_shared<LayoutSource>(build(used), used.seed,
                                        used.config.type == models::ModelConfig::Type::flamingo);
}

}  // namespace floe::cli

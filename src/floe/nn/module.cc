#include "floe/nn/module.h"

#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Type.h>

#include <unordered_map>

#include "floe/core/error.h"
#include "floe/core/names.h"

namespace floe::nn {

at::Tensor deferred(at::IntArrayRef shape, at::ScalarType dtype) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0,
                       at::DataPtr(nullptr, at::Device(at::kCPU)), c10::GetCPUAllocator(),
                       /*resizable=*/false);
  storage.unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this parameter has no memory yet; call fully_shard or materialize before it is read");
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(std::move(storage),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(shape);
  return tensor;
}

bool is_deferred(const at::Tensor& tensor) {
  return tensor.numel() > 0 && tensor.storage().nbytes() == 0;
}

at::Tensor Module::parameter(const std::string& name, const std::vector<std::int64_t>& shape,
                             Init init) {
  inits_[name] = init;
  return register_parameter(name, deferred(shape));
}

at::Tensor Module::tie(const std::string& name, const at::Tensor& other) {
  require(parameters_.contains(name) && parameters_[name].sizes() == other.sizes(), "'", name,
          "' cannot be tied: there is no parameter of that name and shape");
  inits_.erase(name);
  return parameters_[name] = other;
}

void Module::register_at(const std::string& path,
                         const std::shared_ptr<torch::nn::Module>& module) {
  const auto dot = path.find('.');
  if (dot == std::string::npos) {
    register_module(path, module);
    return;
  }
  const std::string first = path.substr(0, dot);
  auto& folder = folders_[first];
  if (!folder) folder = register_module(first, std::make_shared<Module>());
  folder->register_at(path.substr(dot + 1), module);
}

std::string class_name(const torch::nn::Module& module) {
  std::string name = c10::demangle(typeid(module).name());
  // Hooked<torch::nn::LinearImpl, ...> is its first argument for every purpose.
  constexpr std::string_view kHooked = "floe::nn::Hooked<";
  if (name.starts_with(kHooked))
    name = name.substr(kHooked.size(), name.find_first_of(",>") - kHooked.size());
  name = name.substr(0, name.find('<'));
  if (const auto colon = name.rfind("::"); colon != std::string::npos)
    name = name.substr(colon + 2);
  if (name.size() > 4 && name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::vector<NamedParameter> named_parameters(torch::nn::Module& root) {
  std::vector<NamedParameter> result;
  std::unordered_map<const c10::TensorImpl*, std::size_t> seen;
  auto visit = [&](torch::nn::Module& module, const std::string& prefix) {
    auto* own = dynamic_cast<Module*>(&module);
    for (auto& item : module.named_parameters(/*recurse=*/false)) {
      const std::string name = prefix.empty() ? item.key() : prefix + "." + item.key();
      const Init* init = nullptr;
      if (own) {
        const auto found = own->inits().find(item.key());
        if (found != own->inits().end()) init = &found->second;
      }
      const auto [place, is_new] = seen.emplace(item.value().unsafeGetTensorImpl(), result.size());
      if (!is_new) {
        auto& known = result[place->second];
        known.other_names.push_back(name);
        known.owners.push_back(&module);
        if (!known.init) known.init = init;
        continue;
      }
      result.push_back({name, item.value(), init, {&module}, {}});
    }
  };
  root.apply([&](const std::string& name, torch::nn::Module& module) { visit(module, name); });
  return result;
}

void set_trainable(torch::nn::Module& root, const std::vector<std::string>& patterns) {
  auto parameters = named_parameters(root);
  std::vector<std::string> names;
  for (const auto& parameter : parameters) {
    names.push_back(parameter.name);
    names.insert(names.end(), parameter.other_names.begin(), parameter.other_names.end());
  }
  require_matches("train.trainable", "parameter", patterns, names);
  for (auto& parameter : parameters) {
    bool on = glob_match_any(patterns, parameter.name);
    for (const auto& name : parameter.other_names) on = on || glob_match_any(patterns, name);
    parameter.tensor.requires_grad_(on);
  }
}

}  // namespace floe::nn

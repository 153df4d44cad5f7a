#include "floe/checkpoint/trainable_file.h"

#include <algorithm>
#include <map>
#include <set>

#include "floe/checkpoint/json_pickle.h"
#include "floe/checkpoint/tensor_copier.h"
#include "floe/core/error.h"

namespace floe::checkpoint {
namespace {

using pickle::Value;

// Which tensors a set's optimizer keeps, by parameter.
using StateKeys = std::map<std::string, std::set<std::string>>;

StateKeys state_keys(const DcpDirectory& directory, const std::string& set) {
  StateKeys keys;
  for (const auto& [name, tensor] : directory.metadata().tensors)
    if (const auto place = state_place(directory.metadata().paths.at(name).items());
        place && place->set == set)
      keys[place->parameter].insert(place->key);
  return keys;
}

// The optimizer's state of one tensor of the file; what is frozen in it has zeros.
Value state_of(const FileTensor& tensor, const std::string& set, std::int64_t number,
               const StateKeys& keys, const DcpDirectory& directory, TensorCopier& copier) {
  pickle::Entries entries;
  const auto trained =
      std::find_if(tensor.runs.begin(), tensor.runs.end(),
                   [&](const FileRun& run) { return keys.contains(run.parameter); });
  if (trained == tensor.runs.end()) return pickle::dict({});
  for (const std::string& key : keys.at(trained->parameter)) {
    const auto in_directory = [&](const std::string& parameter) {
      return keys.contains(parameter)
                 ? str(join(optimizer_path(set), "."), ".state.", parameter, ".", key)
                 : std::string();
    };
    const std::string name = str("state/", set, set.empty() ? "" : "/", number, "/", key);
    const bool is_count = directory.get(in_directory(trained->parameter)).shape.empty();
    const FileTensor count{name, {}, {{trained->parameter, 0, 1}}, {}};
    entries.emplace_back(key, copier.copy(name, is_count ? count : tensor, in_directory));
  }
  return pickle::dict(std::move(entries));
}

// Tensors that are made of several parameters, under all their names.
std::set<std::string> tables_of_rows(const std::vector<FileTensor>& tensors) {
  std::set<std::string> names;
  for (const FileTensor& tensor : tensors)
    if (std::any_of(tensor.runs.begin(), tensor.runs.end(),
                    [&](const FileRun& run) { return run.parameter != tensor.name; })) {
      names.insert(tensor.name);
      names.insert(tensor.copies.begin(), tensor.copies.end());
    }
  return names;
}

// What torch's LambdaLR keeps.
Value scheduler_value(const SaveJob& job) {
  nlohmann::json state{{"last_epoch", job.header.step},
                       {"_step_count", job.header.step + 1},
                       {"verbose", false},
                       {"_get_lr_called_within_step", false},
                       {"_last_lr", nlohmann::json::array()},
                       {"lr_lambdas", nlohmann::json::array()}};
  for (const auto& group : job.optimizers.front().groups) {
    state["_last_lr"].push_back(group.settings.value("lr", 0.0));
    state["lr_lambdas"].push_back(nullptr);
  }
  const auto& shared = job.about.shared;
  if (shared.is_object() && shared.contains("schedule") && shared.at("schedule").is_object())
    state.update(shared.at("schedule"));
  return to_pickle(state);
}

}  // namespace

Value epoch_of(const SaveJob& job) {
  const nlohmann::json& shared = job.about.shared;
  return shared.is_object() && shared.contains("epoch") ? to_pickle(shared.at("epoch")) : Value(0);
}

Value group_value(const DcpDirectory& directory, const OptimizerGroups& optimizer,
                  std::size_t group, pickle::Items params) {
  pickle::Entries entries;
  for (const auto& item : optimizer.groups[group].settings.items())
    entries.emplace_back(item.key(),
                         directory.object(setting_name(optimizer.set, group, item.key())));
  entries.emplace_back("params", pickle::list(std::move(params)));
  return pickle::dict(std::move(entries));
}

Value optimizer_value(pickle::Entries state, pickle::Items groups) {
  return pickle::dict({{"state", pickle::dict(std::move(state))},
                       {"param_groups", pickle::list(std::move(groups))}});
}

void add_optimizers(const SaveJob& job, const std::string& one, const std::string& several,
                    pickle::Entries& root,
                    const std::function<Value(const OptimizerGroups&)>& value_of) {
  pickle::Entries by_set;
  for (const OptimizerGroups& optimizer : job.optimizers)
    if (optimizer.set.empty())
      root.emplace_back(one, value_of(optimizer));
    else
      by_set.emplace_back(optimizer.set, value_of(optimizer));
  if (!by_set.empty()) root.emplace_back(several, pickle::dict(std::move(by_set)));
}

std::vector<std::vector<const FileTensor*>> numbered_tensors(
    const std::vector<FileTensor>& tensors, const std::vector<optim::ParameterGroup>& groups) {
  std::vector<std::vector<const FileTensor*>> numbered(groups.size());
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::set<std::string> names(groups[g].names.begin(), groups[g].names.end());
    for (const FileTensor& tensor : tensors)
      if (std::any_of(tensor.runs.begin(), tensor.runs.end(),
                      [&](const FileRun& run) { return names.contains(run.parameter); }))
        numbered[g].push_back(&tensor);
  }
  return numbered;
}

std::vector<std::string> numbered_names(const std::vector<FileTensor>& tensors,
                                        const std::vector<optim::ParameterGroup>& groups) {
  std::vector<std::string> names;
  for (const auto& group : numbered_tensors(tensors, groups))
    for (const FileTensor* tensor : group) names.push_back(tensor->name);
  return names;
}

Value trainable_state(const DcpDirectory& directory, const SaveJob& job, TorchFileWriter& writer) {
  TensorCopier copier(directory, writer);
  pickle::Entries weights;
  for (const FileTensor& tensor : job.file_tensors) {
    const Value value = copier.copy("model/" + tensor.name, tensor,
                                    [](const std::string& p) { return "model." + p; });
    weights.emplace_back(tensor.name, value);
    for (const std::string& copy : tensor.copies) weights.emplace_back(copy, value);
  }
  pickle::Entries root{{"epoch", epoch_of(job)},
                       {"model_state_dict", pickle::ordered_dict(std::move(weights))}};
  add_optimizers(job, "optimizer_state_dict", "optimizer_state_dicts", root,
                 [&](const OptimizerGroups& optimizer) {
                   const StateKeys keys = state_keys(directory, optimizer.set);
                   pickle::Entries state;
                   pickle::Items groups;
                   std::int64_t number = 0;
                   const auto numbered = numbered_tensors(job.file_tensors, optimizer.groups);
                   for (std::size_t g = 0; g < numbered.size(); ++g) {
                     pickle::Items ids;
                     for (const FileTensor* tensor : numbered[g]) {
                       if (!keys.empty())
                         state.emplace_back(number, state_of(*tensor, optimizer.set, number, keys,
                                                             directory, copier));
                       ids.emplace_back(number++);
                     }
                     groups.push_back(group_value(directory, optimizer, g, std::move(ids)));
                   }
                   return optimizer_value(std::move(state), std::move(groups));
                 });
  if (job.optimizers.size() == 1 && job.optimizers.front().set.empty())
    root.emplace_back("lr_scheduler_state_dict", scheduler_value(job));
  // OpenFlamingo has no averages; under the model's own names they are for floe alone, which does not need
  // tables of which only rows train.
  pickle::Entries averages;
  const std::set<std::string> tables = tables_of_rows(job.file_tensors);
  for (const auto& [name, tensor] : directory.metadata().tensors)
    if (name.starts_with("ema.") && !tables.contains(name.substr(4)))
      averages.emplace_back(name.substr(4), copier.copy(name));
  if (!averages.empty())
    root.emplace_back("ema_state_dict", pickle::ordered_dict(std::move(averages)));
  return pickle::dict(std::move(root));
}

}  // namespace floe::checkpoint

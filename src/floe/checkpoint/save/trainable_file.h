// What checkpoint_N.pt says, as OpenFlamingo writes it: epoch, model_state_dict,
// optimizer_state_dict (numbered, as torch's own state_dict() has it) and lr_scheduler_state_dict.
// With several sets, each with a schedule of its own, there is optimizer_state_dicts by set instead
// of the last two.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/checkpoint/checkpointer.h"
#include "floe/checkpoint/save/save_job.h"
#include "floe/io/dcp/dcp.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe::checkpoint {

// JSON as Python has it, and back, for what trainers keep beside tensors: objects become dicts,
// arrays lists.
pickle::Value to_pickle(const nlohmann::json& value);
// Tensors and other objects become null.
nlohmann::json to_json(const pickle::Value& value);

// Copying tensors of a directory of torch.distributed.checkpoint into a file of torch.save, in
// blocks.
class TensorCopier {
 public:
  TensorCopier(const DcpDirectory& from, TorchFileWriter& to) : from_(from), to_(to) {}

  // The whole tensor; the result stands for it in the file's pickle.
  pickle::Value copy(const std::string& name);
  // A tensor of fp32 made of parts of others: `name_of` gives the tensor that stands for a
  // parameter, or nothing for zeros.
  pickle::Value copy(const std::string& name, const FileTensor& tensor,
                     const std::function<std::string(const std::string&)>& name_of);

 private:
  void write(const std::string& name, const TensorInfo& info, std::int64_t first,
             std::int64_t count);
  void write_as_floats(const std::string& name, const TensorInfo& info, std::int64_t first,
                       std::int64_t count);
  void write_zeros(const std::string& name, std::int64_t bytes);

  const DcpDirectory& from_;
  TorchFileWriter& to_;
  std::vector<std::byte> block_;
};

// Copies the tensors from the directory and returns the root of the file.
pickle::Value trainable_state(const DcpDirectory& directory, const SaveJob& job,
                              TorchFileWriter& writer);

// File tensors with a parameter that trains, by group: in the order in which torch's optimizer
// numbers them.
std::vector<std::vector<const FileTensor*>> numbered_tensors(
    const std::vector<FileTensor>& tensors, const std::vector<optim::ParameterGroup>& groups);

// Their names, one group after the other.
std::vector<std::string> numbered_names(const std::vector<FileTensor>& tensors,
                                        const std::vector<optim::ParameterGroup>& groups);

// Parts that a file with everything has as well.
pickle::Value epoch_of(const SaveJob& job);
// {"lr": 1e-3, "betas": (0.9, 0.999), ..., "params": [...]}
pickle::Value group_value(const DcpDirectory& directory, const OptimizerGroups& optimizer,
                          std::size_t group, pickle::Items params);
// {"state": {...}, "param_groups": [...]}
pickle::Value optimizer_value(pickle::Entries state, pickle::Items groups);
// Adds what `value_of` makes of the optimizer under the key `one`, or with several sets {set:
// value} under the key `several`.
void add_optimizers(const SaveJob& job, const std::string& one, const std::string& several,
                    pickle::Entries& root,
                    const std::function<pickle::Value(const OptimizerGroups&)>& value_of);

}  // namespace floe::checkpoint

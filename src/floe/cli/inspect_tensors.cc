#include "floe/cli/inspect_tensors.h"

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>

#include "floe/core/bytes.h"
#include "floe/core/str.h"
#include "floe/io/open_tensors.h"
#include "floe/io/safetensors.h"

namespace floe::cli {
namespace {

struct Total {
  std::int64_t tensors = 0, numel = 0, bytes = 0;
  void add(const TensorInfo& tensor) {
    ++tensors;
    numel += tensor.numel();
    bytes += tensor.bytes();
  }
};

Metadata metadata_of(const TensorSource& source) {
  const auto* file = dynamic_cast<const SafetensorsFile*>(&source);
  return file ? file->metadata() : Metadata{};
}

std::string totals_of(const std::string& path, const TensorSource& source) {
  Total all;
  std::map<std::string_view, Total> by_dtype;
  for (const auto& name : source.names()) {
    const TensorInfo& tensor = source.get(name);
    all.add(tensor);
    by_dtype[name_of(tensor.dtype)].add(tensor);
  }
  std::ostringstream out;
  out << path << ": " << all.tensors << " tensors, " << format_count(all.numel) << " numbers, "
      << format_bytes(all.bytes);
  for (const auto& [dtype, total] : by_dtype)
    out << "; " << dtype << ": " << total.tensors << " tensors, " << format_bytes(total.bytes);
  out << "\n";
  return out.str();
}

}  // namespace

std::string tensors_text(const std::string& path) {
  const auto source = open_tensors(path);
  std::ostringstream out;
  for (const auto& [key, value] : metadata_of(*source))
    out << "metadata  " << key << " = " << value << "\n";
  std::size_t longest = 0;
  const auto names = source->names();
  for (const auto& name : names) longest = std::max(longest, name.size());
  for (const auto& name : names) {
    const TensorInfo& tensor = source->get(name);
    out << name << std::string(longest - name.size() + 2, ' ') << name_of(tensor.dtype) << " ["
        << join(tensor.shape) << "]  " << format_bytes(tensor.bytes()) << "\n";
  }
  out << totals_of(path, *source);
  return out.str();
}

std::string totals_text(const std::string& path) { return totals_of(path, *open_tensors(path)); }

nlohmann::ordered_json tensors_json(const std::string& path) {
  const auto source = open_tensors(path);
  nlohmann::ordered_json tensors = nlohmann::ordered_json::object();
  Total all;
  for (const auto& name : source->names()) {
    const TensorInfo& tensor = source->get(name);
    all.add(tensor);
    tensors[name] = {
        {"dtype", name_of(tensor.dtype)}, {"shape", tensor.shape}, {"bytes", tensor.bytes()}};
  }
  return {{"path", path},
          {"metadata", metadata_of(*source)},
          {"num_tensors", all.tensors},
          {"numel", all.numel},
          {"bytes", all.bytes},
          {"tensors", tensors}};
}

}  // namespace floe::cli

// Files of tensors in words, or as JSON.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace floe::cli {

// Metadata, then each tensor: name, dtype, shape, size; and totals.
std::string tensors_text(const std::string& path);
// One line: number, elements and bytes of the tensors, all of them and by dtype.
std::string totals_text(const std::string& path);
nlohmann::ordered_json tensors_json(const std::string& path);

}  // namespace floe::cli

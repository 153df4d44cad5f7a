#include "floe/io/open_tensors.h"

#include <array>
#include <filesystem>

#include "floe/io/dcp_directory.h"
#include "floe/io/hf_folder.h"
#include "floe/io/safetensors.h"
#include "floe/io/torch_file.h"

namespace floe {
namespace {

bool is_torch_file(const std::string& path) {
  const std::filesystem::path extension = std::filesystem::path(path).extension();
  for (const char* usual : {".bin", ".pt", ".pth", ".ckpt"})
    if (extension == usual) return true;
  return ZipReader::is_zip(File(path));
}

}  // namespace

std::unique_ptr<TensorSource> open_tensors(const std::string& path) {
  std::error_code ignored;
  if (is_dcp_directory(path)) return std::make_unique<DcpDirectory>(path);
  if (std::filesystem::is_directory(path, ignored)) return open_tensors(find_weights(path));
  if (std::filesystem::path(path).extension() == ".json")
    return std::make_unique<IndexedShards>(path);
  if (is_torch_file(path)) return std::make_unique<TorchFile>(path);
  return std::make_unique<SafetensorsFile>(path);
}

}  // namespace floe

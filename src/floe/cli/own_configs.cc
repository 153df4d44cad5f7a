#include "floe/cli/own_configs.h"

#include <filesystem>
#include <vector>

namespace floe::cli {

namespace fs = std::filesystem;

std::string own_configs() {
  std::error_code ignored;
  std::vector<fs::path> places;
  const fs::path program = fs::read_symlink("/proc/self/exe", ignored);
  if (!program.empty()) {
    const fs::path folder = program.parent_path();
    places = {folder / "../share/floe/configs", folder / "../../../configs"};  // build/PRESET/bin
  }
#ifdef FLOE_CONFIG_DIR
  places.emplace_back(FLOE_CONFIG_DIR);
#endif
  for (const fs::path& place : places)
    if (fs::exists(place / "strategy/full_shard.yaml", ignored))
      return fs::canonical(place, ignored).string();
  return "";
}

}  // namespace floe::cli

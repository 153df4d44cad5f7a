// Where models lie that train.py names: on disk, or in the Hugging Face hub, from which somebody
// has to download them, because floe reads files only.
#pragma once

#include <string>

namespace floe::migrate {

// "name" or "owner/name" of the hub, rather than a path.
bool is_hub_name(const std::string& text);

// An image tower of open_clip.
struct TowerFiles {
  std::string place;       // the folder or file that model.vision names
  std::string repository;  // of the hub, to be downloaded into that folder; empty: nothing is
  std::string what;        // in a sentence
  std::string warning;     // what the reader has to do; empty: nothing
};
// `name` and `weights` as open_clip takes them; `models` is the folder of what is downloaded.
TowerFiles find_tower(const std::string& name, const std::string& weights,
                      const std::string& models);

}  // namespace floe::migrate

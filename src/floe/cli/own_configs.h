// Where floe keeps the configurations that come with it.
#pragma once

#include <string>

namespace floe::cli {

// The folder with strategy/ and experiment/: installed beside the program, or that of the source
// tree it was built from. Empty when neither is there.
std::string own_configs();

}  // namespace floe::cli

#include "floe/core/host.h"

#include <unistd.h>

#include <array>
#include <fstream>

namespace floe {

const std::string& host_name() {
  static const std::string name = [] {
    std::array<char, 256> text{};
    const bool known = ::gethostname(text.data(), text.size() - 1) == 0 && text[0] != '\0';
    return std::string(known ? text.data() : "localhost");
  }();
  return name;
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

}  // namespace floe

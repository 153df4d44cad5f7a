#include "floe/cli/options.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <vector>

#include "floe/core/names.h"

namespace floe::cli {
namespace {

const OptionRow& find_option(const Command& command, const std::string& name) {
  std::vector<std::string> names;
  for (const OptionRow& row : command.options) {
    if (row.name == name) return row;
    if (row.name.starts_with("-") && !row.help.empty()) names.push_back(row.name);
  }
  const std::string hint = did_you_mean(name, names);
  throw ConfigError(
      str(command.name, ": there is no option '", name, "'",
          hint.empty() ? str("; 'floe ", command.name, " --help' lists them") : hint));
}

}  // namespace

Options::Options(const Command& command, const Args& args, Order order, std::string_view last)
    : command_(command.name) {
  bool only_words = false;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (only_words || !args[i].starts_with("-") || args[i] == "-") {
      words_.push_back(args[i]);
      only_words = only_words || order == Order::leading;
      continue;
    }
    if (args[i] == "--") {
      only_words = true;
      continue;
    }
    const auto equals = args[i].find('=');
    const std::string name = args[i].substr(0, equals);
    const OptionRow& row = find_option(command, name);
    require<ConfigError>(row.repeats || !has(name), command_, ": ", name, " is given twice");
    std::string value;
    if (row.value.empty()) {
      require<ConfigError>(equals == std::string::npos, command_, ": ", name, " takes no value");
      only_words = only_words || name == last;
    } else if (equals != std::string::npos) {
      value = args[i].substr(equals + 1);
    } else {
      require<ConfigError>(i + 1 < args.size(), command_, ": ", name, " needs a value behind it");
      value = args[++i];
    }
    values_[name].push_back(value);
  }
}

std::optional<std::string> Options::value(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::nullopt : std::optional(found->second.back());
}

std::vector<std::string> Options::values(const std::string& name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

std::int64_t Options::integer(const std::string& name, std::int64_t otherwise, std::int64_t least,
                              std::int64_t most) const {
  const auto text = value(name);
  if (!text) return otherwise;
  std::int64_t number = 0;
  const char* end = text->data() + text->size();
  const auto [last, error] = std::from_chars(text->data(), end, number);
  require<ConfigError>(error == std::errc() && last == end && number >= least && number <= most,
                       command_, ": ", name, " is '", *text, "', but must be a whole number from ",
                       least, " to ", most);
  return number;
}

double Options::number(const std::string& name, double otherwise) const {
  const auto text = value(name);
  if (!text) return otherwise;
  double number = 0;
  const char* end = text->data() + text->size();
  const auto [last, error] = std::from_chars(text->data(), end, number);
  require<ConfigError>(error == std::errc() && last == end && std::isfinite(number), command_, ": ",
                       name, " is '", *text, "', but must be a finite number");
  return number;
}

std::optional<std::string> Options::written(const std::string& name,
                                            const std::string& ending) const {
  const auto path = value(name);
  require<ConfigError>(!path || path->ends_with(ending), command_, ": ", name, " '",
                       path.value_or(""), "' must end in ", ending,
                       ", since what is there is replaced; name the file to write behind ", name);
  return path;
}

std::string own_configs() {
  namespace fs = std::filesystem;
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

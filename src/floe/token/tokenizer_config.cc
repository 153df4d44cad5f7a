#include "floe/token/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <string_view>

#include "floe/core/bytes.h"
#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"

namespace floe::token {
namespace {

using nlohmann::json;

constexpr const char* kRoles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                  "pad_token", "cls_token", "mask_token"};

json read_if_any(const std::string& folder, const char* name, std::string& path) {
  path = (std::filesystem::path(folder) / name).string();
  if (!std::filesystem::exists(path)) return json::object();
  json found = parse_json(read_text(path, 64 * kMiB), path);
  require<DataError>(found.is_object(), "'", path, "' must hold a JSON object, not ", shown(found));
  return found;
}

// The class that transformers takes for a folder that does not name one.
std::string class_of_model(const std::string& folder, VocabularyKind kind) {
  static const std::map<std::string, std::string> classes = {
      {"gpt2", "GPT2Tokenizer"},   {"opt", "GPT2Tokenizer"},    {"gpt_neox", "GPTNeoXTokenizer"},
      {"mpt", "GPTNeoXTokenizer"}, {"llama", "LlamaTokenizer"}, {"qwen2", "Qwen2Tokenizer"},
  };
  std::string path;
  const json config = read_if_any(folder, "config.json", path);
  const auto type = config.find("model_type");
  if (type != config.end() && type->is_string())
    if (const auto place = classes.find(type->get<std::string>()); place != classes.end())
      return place->second;
  switch (kind) {
    case VocabularyKind::sentencepiece: return "LlamaTokenizer";
    case VocabularyKind::gpt2: return "GPT2Tokenizer";
    default: return "PreTrainedTokenizer";
  }
}

std::string class_name(const json& config, const std::string& folder, const std::string& path,
                       VocabularyKind kind) {
  const auto place = config.find("tokenizer_class");
  if (place == config.end() || place->is_null()) return class_of_model(folder, kind);
  require<DataError>(place->is_string(), "'", path, "': \"tokenizer_class\" must be a text, not ",
                     shown(*place));
  auto name = place->get<std::string>();
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  static const char* const known[] = {"PreTrainedTokenizer", "GPT2Tokenizer", "GPTNeoXTokenizer",
                                      "LlamaTokenizer", "Qwen2Tokenizer"};
  require<ConfigError>(std::find(std::begin(known), std::end(known), name) != std::end(known), "'",
                       path, "': floe does not support the tokenizer class ", shown(*place),
                       "; it knows ", join(known), " and their fast forms");
  return name;
}

// What the class assumes when the folder names no token for a role.
void add_defaults(TokenizerConfig& config) {
  const auto otherwise = [&](const char* role, const char* content) {
    config.roles.try_emplace(role, special_token(content));
  };
  if (config.class_name == "GPT2Tokenizer" || config.class_name == "GPTNeoXTokenizer") {
    for (const char* role : {"unk_token", "bos_token", "eos_token"})
      otherwise(role, "<|endoftext|>");
  } else if (config.class_name == "LlamaTokenizer") {
    otherwise("unk_token", "<unk>");
    otherwise("bos_token", "<s>");
    otherwise("eos_token", "</s>");
  } else if (config.class_name == "Qwen2Tokenizer") {
    for (const char* role : {"unk_token", "eos_token", "pad_token"})
      otherwise(role, "<|endoftext|>");
  }
}

// A text, or the fields of an added token.
AddedToken read_special(const json& value, const std::string& where) {
  if (value.is_string()) return special_token(value.get<std::string>());
  AddedToken token = read_added_token(value, where);
  token.special = true;
  return token;
}

void read_special_tokens(const json& from, const std::string& path, TokenizerConfig& config,
                         std::map<std::string, bool>& empty_roles) {
  for (const char* role : kRoles) {
    const auto place = from.find(role);
    if (place == from.end()) continue;
    empty_roles[role] = place->is_null();
    config.roles.erase(role);
    if (!place->is_null())
      config.roles[role] = read_special(*place, str("'", path, "': \"", role, "\""));
  }
  const auto more = from.find("additional_special_tokens");
  if (more == from.end() || more->is_null()) return;
  require<DataError>(more->is_array(), "'", path,
                     "': \"additional_special_tokens\" must be a list, not ", shown(*more));
  for (const json& value : *more) {
    const AddedToken token =
        read_special(value, str("'", path, "': \"additional_special_tokens\""));
    if (!contains(config.additional, token.content)) config.additional.push_back(token);
  }
}

std::optional<bool> read_flag(const json& config, const char* name, const std::string& path) {
  const auto place = config.find(name);
  if (place == config.end() || place->is_null()) return std::nullopt;
  require<DataError>(place->is_boolean(), "'", path, "': \"", name,
                     "\" must be true or false, not ", shown(*place));
  return place->get<bool>();
}

// "added_tokens_decoder": {"50265": {"content": "<image>", ...}}
void read_added_decoder(const json& added, const std::string& path, TokenizerConfig& config) {
  const std::string where = str("'", path, "': \"added_tokens_decoder\"");
  require<DataError>(added.is_object(), where, " must be an object, not ", shown(added));
  for (const auto& [key, value] : added.items()) {
    std::int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    require<DataError>(error == std::errc() && end == key.data() + key.size() && id >= 0, where,
                       ": ", quoted(key), " is no id");
    config.added[id] = read_added_token(value, where);
  }
}

// The older form, {"<image>": 50265}.
void read_added_map(const json& added, const std::string& path, TokenizerConfig& config) {
  const std::vector<AddedToken> specials = config.special_tokens();
  for (const auto& [content, id] : added.items()) {
    require<DataError>(id.is_number_unsigned() && id.get<std::uint64_t>() < INT32_MAX, "'", path,
                       "': the id of ", quoted(content), " must be a number below 2^31, not ",
                       shown(id));
    const bool special = contains(specials, content);
    config.added[id.get<std::int64_t>()] = {
        .content = content, .normalized = !special, .special = special};
  }
}

}  // namespace

std::vector<AddedToken> TokenizerConfig::special_tokens() const {
  std::vector<AddedToken> tokens;
  const auto add = [&](const AddedToken& token) {
    if (!contains(tokens, token.content)) tokens.push_back(token);
  };
  for (const char* name : kRoles)
    if (const auto place = roles.find(name); place != roles.end()) add(place->second);
  for (const AddedToken& token : additional) add(token);
  return tokens;
}

std::optional<std::string> TokenizerConfig::role(const char* name) const {
  const auto place = roles.find(name);
  return place == roles.end() ? std::nullopt : std::optional(place->second.content);
}

TokenizerConfig read_tokenizer_config(const std::string& folder, VocabularyKind kind) {
  std::string path, map_path, added_path;
  const json own = read_if_any(folder, "tokenizer_config.json", path);
  TokenizerConfig config;
  config.class_name = class_name(own, folder, path, kind);
  std::map<std::string, bool> empty_roles;
  read_special_tokens(own, path, config, empty_roles);
  // The other files count only where tokenizer_config.json is of the older kind.
  if (const auto added = own.find("added_tokens_decoder"); added != own.end()) {
    read_added_decoder(*added, path, config);
  } else {
    config.legacy_added = true;
    const json map = read_if_any(folder, "special_tokens_map.json", map_path);
    read_special_tokens(map, map_path, config, empty_roles);
    const json added_map = read_if_any(folder, "added_tokens.json", added_path);
    read_added_map(added_map, added_path, config);
  }
  add_defaults(config);
  for (const auto& [role, is_empty] : empty_roles)
    if (is_empty) config.roles.erase(role);

  config.add_prefix_space = read_flag(own, "add_prefix_space", path);
  config.add_bos_token = read_flag(own, "add_bos_token", path);
  config.add_eos_token = read_flag(own, "add_eos_token", path);
  config.legacy = read_flag(own, "legacy", path);
  config.clean_up_spaces = read_flag(own, "clean_up_tokenization_spaces", path).value_or(false);
  require<ConfigError>(!read_flag(own, "split_special_tokens", path).value_or(false), "'", path,
                       "': floe does not support \"split_special_tokens\"");
  if (const auto extra = own.find("extra_special_tokens"); extra != own.end())
    require<ConfigError>(extra->empty(), "'", path,
                         "': floe does not support \"extra_special_tokens\"");
  return config;
}

std::string clean_up_spaces(std::string text) {
  static constexpr struct {
    std::string_view from, to;
  } kRepairs[] = {{" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
                  {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kRepairs) {
    std::string result;
    std::size_t done = 0;
    for (std::size_t at; (at = text.find(from, done)) != std::string::npos; done = at + from.size())
      result.append(text, done, at - done).append(to);
    text = result.append(text, done);
  }
  return text;
}

}  // namespace floe::token

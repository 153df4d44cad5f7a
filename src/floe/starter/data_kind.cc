// Which source data is for, by what lies in it.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "floe/core/error.h"
#include "floe/data/python/str.h"
#include "floe/data/shards/shard_list.h"
#include "floe/data/sources/text_files.h"
#include "floe/starter/data_facts.h"
#include "floe/starter/walk_shard.h"

namespace floe::starter {
namespace {

namespace fs = std::filesystem;

constexpr int kMostPeeked = 32, kMostPeekedShards = 8;

constexpr std::string_view kWhatFloeReads =
    "floe reads tars of pictures (.jpg, .png) with captions (.txt), of MMC4 documents (.json with "
    "'image_info'; see floe convert mmc4), of texts (.txt) or of instructions (.json with 'prompt' "
    "and 'response'), lines of JSON (.jsonl) with 'text' or with 'prompt' and 'response', and "
    "prepared batches (.safetensors)";

bool has_text(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string();
}

// By the keys of a JSON object; empty: of none.
std::string kind_of_json(const data::Bytes& bytes, std::set<std::string>& found) {
  const nlohmann::json json =
      nlohmann::json::parse(data::as_text(bytes), nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded() || !json.is_object()) {
    found.insert(json.is_discarded() ? "what is no JSON" : "JSON that is no object");
    return "";
  }
  if (has_text(json, "prompt") && has_text(json, "response")) return "instruct";
  if (json.contains("image_info") || json.contains("text_list") || json.contains("is_gpt"))
    return "mmc4";
  if (has_text(json, "text")) return "text";
  std::vector<std::string> keys;
  for (const auto& item : json.items())
    if (keys.size() < 8) keys.push_back("'" + item.key().substr(0, 40) + "'");
  found.insert(keys.empty() ? "JSON without a key" : "JSON with " + join(keys));
  return "";
}

// By the files of a sample; empty: of no source, and `found` has what they are.
std::string kind_of_sample(const data::RawSample& raw, std::set<std::string>& found) {
  if (const data::Field* line = raw.find("jsonl")) {
    std::string kind = kind_of_json(line->bytes, found);
    if (kind != "mmc4") return kind;
    found.insert("MMC4 documents as lines of JSON, which floe convert mmc4 makes shards of");
    return "";
  }
  const bool picture = raw.find("jpg") || raw.find("png") || raw.find("jpeg");
  if (picture && raw.find("txt")) return "laion";
  const data::Field* json = raw.find("json");
  if (json && !picture) {
    std::string kind = kind_of_json(json->bytes, found);
    if (kind != "text") return kind;
    found.insert("texts in .json, which floe reads from .txt");
    return "";
  }
  if (raw.find("txt") && raw.fields.size() == 1) return "text";
  std::vector<std::string> suffixes;
  for (const data::Field& field : raw.fields)
    if (suffixes.size() < 8) suffixes.push_back("." + field.suffix.substr(0, 20));
  std::sort(suffixes.begin(), suffixes.end());
  found.insert("samples of " + join(suffixes));
  return "";
}

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return name.ends_with(end); });
}

bool is_tar_name(const std::string& name) {
  return ends_with_any(name,
                       {".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tar.lz4"});
}

// A folder's data as a pattern: all of its tars, or all of its JSON lines.
std::string files_in(const std::string& folder) {
  require<ConfigError>(folder.find("::") == std::string::npos, "init: the folder '", folder,
                       "' has '::' in its name, which stands between shards; rename it");
  std::set<std::string> endings;
  std::size_t count = 0;
  std::string other;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    ++count;
    if (is_tar_name(name))
      endings.insert(name.ends_with(".tar") ? "*.tar" : "*.t*");
    else if (data::is_json_lines(name))
      endings.insert(name.find(".ndjson") == std::string::npos ? "*.jsonl*" : "*.ndjson*");
    else if (other.empty() || name < other)
      other = name;
  }
  require<ConfigError>(!endings.empty(), "init: the folder '", folder, "' has ",
                       count == 0 ? "nothing in it"
                                  : str("no .tar and no .jsonl, but ", counted(count, "file"),
                                        " such as '", other, "'"),
                       "; ", kWhatFloeReads);
  require<ConfigError>(endings.size() == 1, "init: the folder '", folder, "' has ",
                       join(endings, " and "), "; name one of them with --data '", folder, "/",
                       *endings.begin(), "'");
  const std::string& files = *endings.begin();
  // A folder whose own characters would be part of the pattern is written so that they are not.
  if (folder.find_first_of("{},\\*?[") != std::string::npos)
    return data::resolve_shards(files, folder + "/list");
  return (fs::path(folder) / files).string();
}

}  // namespace

std::string walk_shard(const std::string& shard, const data::OpenShard& open,
                       const VisitSample& visit) {
  data::ReaderOptions reading;
  reading.shards = std::make_shared<const std::vector<std::string>>(1, shard);
  reading.open = open;
  data::ShardWalker walker(reading, data::every_nth_shard(0, 1, 1));
  std::string damage;
  while (!walker.ended()) {
    const auto found = walker.next();
    for (const data::BadShard& bad : walker.take_bad_shards()) damage = bad.what;
    if (found && !visit(found->raw)) break;
  }
  return damage;
}

DataWord parse_data_word(const std::string& word) {
  DataWord parsed{"", word};
  std::error_code ignored;
  if (const std::size_t equals = word.find('=');
      equals != std::string::npos && !fs::exists(word, ignored)) {
    const std::string kind = word.substr(0, equals);
    if (kind == "batches" || data::find_source(kind)) parsed = {kind, word.substr(equals + 1)};
  }
  require<ConfigError>(!parsed.pattern.empty(), "init: --data is empty; ", kWhatFloeReads);
  if (fs::is_directory(parsed.pattern, ignored)) parsed.pattern = files_in(parsed.pattern);
  return parsed;
}

std::string kind_of_data(const std::string& pattern) {
  if (pattern.ends_with(".safetensors") && pattern.find("::") == std::string::npos)
    return "batches";
  std::map<std::string, int> kinds;
  std::set<std::string> found;
  std::string damage, where;
  int looked_at = 0, peeked = 0;
  for (const std::string& shard : data::expand_shards(pattern)) {
    if (peeked > 0 || looked_at++ == kMostPeekedShards) break;
    damage = walk_shard(shard, data::open_text, [&](const data::RawSample& raw) {
      where = shard;
      if (const std::string kind = kind_of_sample(raw, found); !kind.empty()) ++kinds[kind];
      return ++peeked < kMostPeeked;
    });
  }
  const bool command = pattern.starts_with("pipe:") || pattern.starts_with("s3://");
  require<ConfigError>(peeked > 0, "init: --data '", pattern, "' has no sample to look at",
                       damage.empty() ? "" : ": ", damage, "; ",
                       command ? str("say what it is with --data KIND='", pattern,
                                     "', where KIND is laion, mmc4, text or instruct")
                               : std::string(kWhatFloeReads));
  require<ConfigError>(!kinds.empty(), "init: '", where, "' has ", join(found, "; "), "; ",
                       kWhatFloeReads);
  return std::max_element(kinds.begin(), kinds.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace floe::starter

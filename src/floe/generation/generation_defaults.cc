#include "floe/generation/generation_defaults.h"

#include <nlohmann/json.hpp>

#include "floe/io/file/file.h"
#include "floe/io/file/json_text.h"
#include "floe/models/flamingo/exported_flamingo.h"
#include "floe/models/flamingo/flamingo.h"

namespace floe::generation {
namespace {

struct FileDefaults {
  std::string file;
  nlohmann::json values;
};

FileDefaults file_defaults(const std::string& folder) {
  std::string file = folder + "/generation_config.json";
  if (!path_exists(file)) file = folder + "/config.json";
  const bool own = file.ends_with("/config.json");  // may be that of an exported Flamingo
  nlohmann::json values =
      own ? nlohmann::json(models::lm_config(folder)) : parse_json(read_text(file, 1 << 24), file);
  require<DataError>(values.is_object(), file, ": is no JSON object");
  return {file, std::move(values)};
}

std::vector<std::int64_t> token_ids(const FileDefaults& defaults, const char* key) {
  const nlohmann::json found = defaults.values.value(key, nlohmann::json());
  if (found.is_null()) return {};
  std::vector<std::int64_t> ids;
  for (const nlohmann::json& id : found.is_array() ? found : nlohmann::json::array({found})) {
    require<DataError>(id.is_number_integer(), defaults.file, ": \"", key, "\" is ", shown(found),
                       ", but must be a token id or a list of them");
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

std::int64_t positions_of(const std::string& folder) {
  const nlohmann::json config(models::lm_config(folder));
  for (const char* key : {"n_positions", "max_position_embeddings", "n_ctx", "max_seq_len"})
    if (const auto found = config.find(key); found != config.end() && found->is_number_integer())
      return found->get<std::int64_t>();
  return 0;
}

}  // namespace

GenerationDefaults generation_defaults(const models::ModelConfig& config,
                                       const models::LanguageModel& model, bool with_ends) {
  const FileDefaults files = file_defaults(config.lm);
  GenerationDefaults defaults;
  if (const auto* flamingo = dynamic_cast<const models::Flamingo*>(&model))
    defaults.eos = {flamingo->spec().endofchunk_token};
  else if (with_ends)
    defaults.eos = token_ids(files, "eos_token_id");
  for (const char* key : {"bos_token_id", "eos_token_id"})
    if (const auto id = files.values.find(key);
        !defaults.bos && id != files.values.end() && id->is_number_integer())
      defaults.bos = id->get<std::int64_t>();
  const nlohmann::json use_cache = files.values.value("use_cache", nlohmann::json());
  defaults.images_of_whole_text = use_cache.is_boolean() && !use_cache.get<bool>();
  defaults.positions = positions_of(config.lm);
  return defaults;
}

}  // namespace floe::generation

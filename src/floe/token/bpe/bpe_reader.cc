#include "floe/core/error.h"
#include "floe/io/file/json_text.h"
#include "floe/token/bpe/bpe.h"
#include "floe/token/json/json_fields.h"

namespace floe::token {

namespace {

using nlohmann::json;

StringToId read_vocabulary(const json& vocabulary, const std::string& where) {
  StringToId result;
  result.reserve(vocabulary.size());
  for (const auto& [token, id] : vocabulary.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= INT32_MAX)
      throw DataError(str(where, ": the id of ", quoted(token),
                          " must be a number below 2^31, not ", shown(id)));
    result.emplace(token, id.get<std::int32_t>());
  }
  return result;
}

// Newer files write ["a", "b"], older ones "a b".
Bpe::Merges read_merges(const json& merges, const std::string& where) {
  Bpe::Merges result;
  result.reserve(merges.size());
  for (const json& merge : merges) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      result.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    if (text.starts_with("#version")) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos)
      throw DataError(str(where, ": a merge must be two tokens, not ", shown(merge)));
    result.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return result;
}

}  // namespace

Bpe Bpe::read(const json& model, bool words_are_bytes, const std::string& where) {
  JsonFields fields(model, where);
  // Files of the first versions do not say which model they hold; of those, only BPE has merges.
  const std::string type =
      fields.text_if_any("type").value_or(model.contains("merges") ? "BPE" : "");
  require<ConfigError>(type == "BPE", where, ": floe does not support the model ", quoted(type),
                       "; it knows BPE");
  const json& dropout = fields.any("dropout");
  require<ConfigError>(dropout.is_null() || dropout == 0.0, where,
                       ": floe does not support dropout in the tokenizer, found ", shown(dropout));
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
    require<ConfigError>(fields.text_if_any(name).value_or("").empty(), where,
                         ": floe does not support \"", name, "\"");
  Options options;
  options.unk_token = fields.text_if_any("unk_token");
  options.fuse_unk = fields.flag("fuse_unk", false);
  options.byte_fallback = fields.flag("byte_fallback", false);
  options.ignore_merges = fields.flag("ignore_merges", false);
  Bpe bpe(read_vocabulary(fields.object("vocab"), where), read_merges(fields.list("merges"), where),
          options, words_are_bytes, where);
  fields.finish();
  return bpe;
}

}  // namespace floe::token

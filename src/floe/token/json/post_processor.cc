#include <optional>

#include "floe/core/error.h"
#include "floe/io/file/json_text.h"
#include "floe/token/json/json_fields.h"
#include "floe/token/json/parts.h"

namespace floe::token {
namespace {

using nlohmann::json;

std::int32_t read_id(const json& id, const std::string& where) {
  require<DataError>(id.is_number_unsigned() && id.get<std::uint64_t>() < INT32_MAX, where,
                     ": an id must be a number below 2^31, not ", shown(id));
  return id.get<std::int32_t>();
}

// "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}
std::vector<std::int32_t> special_ids(const json& specials, const std::string& name,
                                      const std::string& where) {
  const auto place = specials.find(name);
  require<DataError>(place != specials.end() && place->is_object() && place->contains("ids") &&
                         (*place)["ids"].is_array(),
                     where, ": the template uses ", quoted(name),
                     ", whose ids are not in \"special_tokens\"");
  std::vector<std::int32_t> ids;
  for (const json& id : (*place)["ids"]) ids.push_back(read_id(id, where));
  return ids;
}

// "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id":
// 0}}]
PostProcessor read_template(JsonFields& fields) {
  const std::string& where = fields.where();
  const json& specials = fields.object("special_tokens");
  fields.ignore("pair");  // floe encodes single texts
  PostProcessor result;
  bool seen_text = false;
  for (const json& piece : fields.list("single")) {
    const bool one = piece.is_object() && piece.size() == 1 && piece.begin()->is_object() &&
                     piece.begin()->contains("id") && (*piece.begin())["id"].is_string();
    const std::string kind = one ? piece.begin().key() : "";
    const std::string id = one ? (*piece.begin())["id"].get<std::string>() : "";
    if (kind == "SpecialToken") {
      auto& place = seen_text ? result.after : result.before;
      const auto ids = special_ids(specials, id, where);
      place.insert(place.end(), ids.begin(), ids.end());
    } else {
      require<ConfigError>(kind == "Sequence" && id == "A" && !seen_text, where,
                           ": floe supports templates with the text once, found ", shown(piece));
      seen_text = true;
    }
  }
  require<ConfigError>(seen_text, where,
                       ": floe supports templates with the text once, found none");
  return result;
}

// "cls": ["<s>", 0], "sep": ["</s>", 2]
PostProcessor read_pair_of_tokens(JsonFields& fields) {
  const auto id = [&](const char* name) {
    const json& token = fields.list(name);
    require<DataError>(token.size() == 2, fields.where(), ": \"", name,
                       "\" must be a token and its id, not ", shown(token));
    return read_id(token[1], fields.where());
  };
  fields.ignore("trim_offsets");
  fields.ignore("add_prefix_space");
  return {{id("cls")}, {id("sep")}};
}

std::optional<PostProcessor> read_one(const json& post_processor, const std::string& where) {
  if (post_processor.is_null()) return std::nullopt;
  JsonFields fields(post_processor, where);
  const std::string type = fields.type();
  std::optional<PostProcessor> result;
  if (type == "TemplateProcessing") {
    result = read_template(fields);
  } else if (type == "RobertaProcessing" || type == "BertProcessing") {
    result = read_pair_of_tokens(fields);
  } else if (type == "ByteLevel") {  // moves offsets only
    for (const char* name : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.ignore(name);
  } else if (type == "Sequence") {
    for (const json& part : fields.list("processors")) {
      const auto one = read_one(part, where);
      require<ConfigError>(!one || !result, where,
                           ": floe supports one post-processor that adds tokens, found several");
      if (one) result = one;
    }
  } else {
    throw ConfigError(str(where, ": floe does not support the post-processor ", quoted(type),
                          "; it knows TemplateProcessing, ByteLevel, RobertaProcessing, "
                          "BertProcessing and Sequence"));
  }
  fields.finish();
  return result;
}

}  // namespace

PostProcessor read_post_processor(const json& post_processor, const std::string& where) {
  return read_one(post_processor, where).value_or(PostProcessor{});
}

}  // namespace floe::token

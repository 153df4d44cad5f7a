// One object of tokenizer.json, read field by field; a field that nobody asked for is refused, so
// that nothing in the file is silently ignored.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

namespace floe::token {

class JsonFields {
 public:
  // `where` begins every message: "'x/tokenizer.json': normalizer".
  JsonFields(const nlohmann::json& object, std::string where);

  // The "type" of the object.
  std::string type();
  const std::string& where() const { return where_; }

  bool flag(const char* name);
  bool flag(const char* name, bool otherwise);
  std::string text(const char* name);
  // nullopt where the field is null or absent.
  std::optional<std::string> text_if_any(const char* name);
  std::size_t count(const char* name);
  // One character.
  char32_t character(const char* name);
  const nlohmann::json& list(const char* name);
  const nlohmann::json& object(const char* name);
  // Null where it is absent.
  const nlohmann::json& any(const char* name);
  // A field that has no effect on ids or text.
  void ignore(const char* name) { seen_.insert(name); }

  // Throws ConfigError for a field that was not asked for.
  void finish() const;

 private:
  const nlohmann::json& must(const char* name, bool right, const char* kind);

  const nlohmann::json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

}  // namespace floe::token

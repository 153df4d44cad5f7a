#include "floe/config/field_info.h"

#include <utility>

#include "floe/core/str.h"

namespace floe::config {
namespace {

std::string join_keys(const std::string& section, const std::string& key) {
  const bool glued = section.empty() || key.starts_with('[') || key.starts_with('.');
  return section + (glued ? "" : ".") + key;
}

void add_help(const std::string& section, const std::vector<FieldInfo>& fields, std::string& out) {
  for (const FieldInfo& field : fields) {
    const std::string key = join_keys(section, field.key);
    if (field.children.empty() || !field.default_text.empty()) {
      out += str("  ", key, field.required ? "" : ": " + field.default_text, "  (", field.type,
                 field.required ? ", required" : "", ")\n      ", field.help, "\n");
    }
    add_help(key, field.children, out);
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

void add_tables(const std::string& section, const std::string& help,
                const std::vector<FieldInfo>& fields, std::string& out) {
  if (!section.empty()) out += str("## `", section, "`\n\n", help, ".\n\n");
  std::string rows;
  for (const FieldInfo& field : fields)
    if (field.children.empty() || !field.default_text.empty())
      rows += str("| `", escaped(field.key), "` | ", escaped(field.type), " | ",
                  field.required ? "required" : "`" + escaped(field.default_text) + "`", " | ",
                  escaped(field.help), " |\n");
  if (!rows.empty())
    out += "| key | type | default | meaning |\n| --- | --- | --- | --- |\n" + rows + "\n";
  for (const FieldInfo& field : fields)
    if (!field.children.empty())
      add_tables(join_keys(section, field.key), field.help, field.children, out);
}

}  // namespace

std::vector<FieldInfo> with_prefix(const std::string& prefix, std::vector<FieldInfo> fields) {
  for (FieldInfo& field : fields) field.key = join_keys(prefix, field.key);
  return fields;
}

std::string help_text(const std::vector<FieldInfo>& fields) {
  std::string out;
  add_help("", fields, out);
  return out;
}

std::string markdown_reference(const std::vector<FieldInfo>& fields) {
  std::string out;
  add_tables("", "", fields, out);
  return out;
}

}  // namespace floe::config

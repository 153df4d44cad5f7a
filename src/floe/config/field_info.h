// What help and the reference page say about a field.
#pragma once

#include <string>
#include <vector>

namespace floe::config {

struct FieldInfo {
  std::string key;           // "steps"; inside lists "[].name", inside named blocks ".NAME.name"
  std::string type;          // "integer, at least 1"
  std::string default_text;  // as YAML; empty when required
  std::string help;          // one sentence without a full stop
  bool required = false;
  std::vector<FieldInfo> children;  // of a section
};

// The children of a list or of a block by name, keyed from their container.
std::vector<FieldInfo> with_prefix(const std::string& prefix, std::vector<FieldInfo> fields);

// Plain text for --help: one field per paragraph, full keys.
std::string help_text(const std::vector<FieldInfo>& fields);
// Markdown: a table per section.
std::string markdown_reference(const std::vector<FieldInfo>& fields);

}  // namespace floe::config

#include "floe/config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

#include "floe/core/error.h"
#include "floe/core/str.h"

namespace floe::config {
namespace {

constexpr std::size_t kMostTextBytes = 1 << 20;
constexpr std::size_t kMostKeyBytes = 200;

// Builds the tree from parser events: yaml-cpp's own node tree would share aliased nodes (unbounded
// when walked), keep duplicate keys, and guess types on access.
class Builder : public YAML::EventHandler {
 public:
  // With `fixed` every value has that origin, else its place in the source.
  Builder(std::string name, std::optional<Origin> fixed)
      : source_(std::make_shared<const std::string>(std::move(name))), fixed_(std::move(fixed)) {}

  Value take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(mark, anchor, Value({}, origin(mark)));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    if (tag == "?" || tag.empty()) {
      add(mark, anchor, Value::plain(text, origin(mark)), &text);
    } else if (tag == "!" || tag == "tag:yaml.org,2002:str") {
      add(mark, anchor, Value(text, origin(mark)), &text);
    } else {
      fail(mark, str("the tag '", tag, "' is not supported: write the plain value"));
    }
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end()) fail(mark, "this alias stands inside what it refers to");
    count(mark, count_nodes(found->second) - 1);
    if (static_cast<int>(open_.size()) + depth_of(found->second) > kMostDepth) fail_depth(mark);
    Value copy = found->second;
    const std::string text = copy.scalar_text();
    add(mark, YAML::NullAnchor, std::move(copy), &text);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    begin(mark, tag, anchor, List());
  }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    begin(mark, tag, anchor, Map());
  }
  void OnSequenceEnd() override { end(); }
  void OnMapEnd() override { end(); }

  [[noreturn]] void fail(const YAML::Mark& mark, const std::string& what) const {
    throw ConfigError(str(origin(mark).text(), ": ", what));
  }

 private:
  struct Open {  // a list or map that has begun and not ended
    Value value;
    YAML::Mark mark;
    YAML::anchor_t anchor;
    std::optional<std::string> key;  // of a map, waiting for its value
    Origin key_origin;
  };

  Origin origin(const YAML::Mark& mark) const {
    if (fixed_) return *fixed_;
    return {source_, mark.line + 1, mark.column + 1};
  }

  void begin(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
             Value::Data data) {
    if (!tag.empty() && tag != "?" && tag != "!")
      fail(mark, str("the tag '", tag, "' is not supported"));
    if (!open_.empty() && open_.back().value.as<Map>() && !open_.back().key)
      fail(mark, "a key must be a plain word, not a list or a map (or is a ']' or '}' missing?)");
    if (static_cast<int>(open_.size()) + 1 >= kMostDepth) fail_depth(mark);
    open_.push_back({Value(std::move(data), origin(mark)), mark, anchor, {}, {}});
  }

  void end() {
    Open done = std::move(open_.back());
    open_.pop_back();
    add(done.mark, done.anchor, std::move(done.value));
  }

  // `text`: what the value would be as a key.
  void add(const YAML::Mark& mark, YAML::anchor_t anchor, Value value,
           const std::string* text = nullptr) {
    count(mark, 1);
    if (anchor != YAML::NullAnchor) anchors_[anchor] = value;
    if (open_.empty()) {
      root_ = std::move(value);
      return;
    }
    Open& parent = open_.back();
    if (auto* list = parent.value.as<List>()) {
      list->push_back(std::move(value));
    } else if (!parent.key) {
      set_key(mark, parent, value, text);
    } else {
      // A block begins on the line after its key; the key is the place that people look for.
      if (!value.is_scalar()) value.origin = parent.key_origin;
      (*parent.value.as<Map>())[*parent.key] = std::move(value);
      parent.key.reset();
    }
  }

  void set_key(const YAML::Mark& mark, Open& parent, const Value& value, const std::string* text) {
    if (!text || !value.is_scalar() || text->size() > kMostKeyBytes)
      fail(mark, str("a key must be a plain word of at most ", kMostKeyBytes, " bytes"));
    if (const Value* earlier = parent.value.as<Map>()->find(*text))
      fail(mark, str("the key '", *text, "' is here a second time (first value at ",
                     earlier->origin.text(), "): keep one of them"));
    parent.key = *text;
    parent.key_origin = origin(mark);
  }

  void count(const YAML::Mark& mark, std::int64_t nodes) {
    nodes_ += nodes;
    if (nodes_ > kMostNodes)
      fail(mark, str("more than ", kMostNodes, " values (aliases count in full)"));
  }

  [[noreturn]] void fail_depth(const YAML::Mark& mark) const {
    fail(mark, str("nested deeper than ", kMostDepth, " levels"));
  }

  std::shared_ptr<const std::string> source_;
  std::optional<Origin> fixed_;
  Value root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, Value> anchors_;
  std::int64_t nodes_ = 0;
};

// Patterns, lists and templates begin with characters that mean something else to YAML: *.tar,
// @list, {0..3}.tar. `at`: where it is no YAML any more.
std::string hint_of_quotes(const std::string& text, std::size_t at) {
  constexpr std::string_view kBegin = "*@`%", kEnd = "}]";
  std::string_view begin;
  if (at < text.size() && kBegin.find(text[at]) != std::string_view::npos)
    begin = std::string_view(text).substr(at, 1);
  else if (at > 0 && at <= text.size() && kEnd.find(text[at - 1]) != std::string_view::npos)
    begin = text[at - 1] == '}' ? "{" : "[";
  if (begin.empty()) return "";
  return str("; a text that begins with '", begin, "' stands in quotes, as in \"", begin,
             begin == "{" ? "0..3}.tar\"" : "x\"");
}

Value parse(const std::string& text, const std::string& name, std::optional<Origin> fixed) {
  require<ConfigError>(text.size() <= kMostTextBytes, name, ": a configuration may have at most ",
                       kMostTextBytes, " bytes, this has more");
  const bool is_inline = fixed.has_value();
  Builder builder(name, std::move(fixed));
  std::istringstream stream(text);
  try {
    YAML::Parser parser(stream);
    parser.HandleNextDocument(builder);
    Value value = builder.take();
    Builder rest(name, {});
    require<ConfigError>(!parser.HandleNextDocument(rest), name,
                         is_inline
                             ? str(": a value is followed by other text",
                                   hint_of_quotes(text, text.find_first_of("}]") + 1))
                             : std::string(": more than one YAML document; split it into files"));
    return value;
  } catch (const YAML::Exception& error) {
    const auto at = static_cast<std::size_t>(std::max(0, error.mark.pos));
    builder.fail(error.mark, str("not valid YAML: ", error.msg, hint_of_quotes(text, at)));
  }
}

}  // namespace

Value parse_yaml(const std::string& text, const std::string& name) { return parse(text, name, {}); }

Value parse_inline_yaml(const std::string& text, const Origin& origin) {
  return parse(text, origin.text(), origin);
}

Value read_yaml(const std::string& path) {
  std::ifstream file(path);
  // Somebody's weights need not be read to the end to be told from a configuration.
  std::string text(kMostTextBytes + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(file.gcount()));
  require<ConfigError>(file.is_open() && !file.bad(), "cannot read the configuration '", path,
                       "': give the path of a YAML file");
  return parse_yaml(text, path);
}

}  // namespace floe::config

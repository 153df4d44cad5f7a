#include <cstdlib>
#include <unordered_set>

#include "floe/config/load.h"
#include "floe/core/error.h"

namespace floe::config {
namespace {

constexpr std::size_t kMostResolvedBytes = 1 << 16;
constexpr std::size_t kMostChain = 64;

void set_origin(Value& value, const Origin& origin) {
  value.origin = origin;
  if (auto* list = value.as<List>())
    for (Value& item : *list) set_origin(item, origin);
  if (auto* map = value.as<Map>())
    for (auto& [key, item] : *map) set_origin(item, origin);
}

// Depth first: a value is resolved in place before anything takes a copy of it, so each is expanded
// once. No container changes size, so addresses identify values.
class Resolver {
 public:
  Resolver(Value& root, const Environment& environment)
      : root_(root), environment_(environment), nodes_(count_nodes(root)) {}

  void visit(Value& value, int depth) {
    if (done_.contains(&value)) return;
    if (!active_.insert(&value).second)
      throw ConfigError(
          str(value.origin.text(), ": ", value.shown(), " refers to itself in a circle"));
    if (auto* list = value.as<List>())
      for (Value& item : *list) visit(item, depth + 1);
    if (auto* map = value.as<Map>())
      for (auto& [key, item] : *map) visit(item, depth + 1);
    if (const auto* text = value.as<std::string>(); text && text->find("${") != std::string::npos) {
      if (active_.size() > kMostChain + kMostDepth)
        fail(value, "the chain of references is too long");
      substitute(value, depth);
    }
    active_.erase(&value);
    done_.insert(&value);
  }

 private:
  [[noreturn]] void fail(const Value& value, const std::string& what) const {
    throw ConfigError(str(value.origin.text(), ": ", what));
  }

  void substitute(Value& value, int depth) {
    const std::string text = *value.as<std::string>();
    std::string out;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = text.find("${", at);
      if (begin == std::string::npos) {
        out += text.substr(at);
        break;
      }
      if (begin > at && text[begin - 1] == '$') {  // "$${": drop one '$', keep the rest as it is
        out += text.substr(at, begin - at - 1) + "${";
        at = begin + 2;
        continue;
      }
      const std::size_t end = text.find('}', begin);
      if (end == std::string::npos)
        fail(value, str(value.shown(), " has a '${' without '}'; a literal '${' is written '$${'"));
      Value target = lookup(value, text.substr(begin + 2, end - begin - 2));
      if (begin == 0 && end + 1 == text.size()) return replace(value, std::move(target), depth);
      if (!target.is_scalar() || target.is_null())
        fail(value, str(text.substr(begin, end + 1 - begin), " is ", target.shown(),
                        ", which cannot stand inside a text"));
      out += text.substr(at, begin - at) + target.scalar_text();
      if (out.size() > kMostResolvedBytes) fail(value, "the text grows too long");
      at = end + 1;
    }
    value.data = std::move(out);
  }

  void replace(Value& value, Value target, int depth) {
    nodes_ += count_nodes(target);
    if (nodes_ > kMostNodes || depth + depth_of(target) > kMostDepth)
      fail(value, "the references make the configuration too large");
    set_origin(target, value.origin);
    value = std::move(target);
  }

  Value lookup(Value& from, const std::string& name) {
    if (name.starts_with("env:")) return from_environment(from, name.substr(4));
    Value* value = &root_;
    for (const std::string& key : split_path(name)) {
      // A reference on the way leads on to its own target.
      if (value->as<std::string>()) visit(*value, 1);
      Map* map = value->as<Map>();
      value = map ? map->find(key) : nullptr;
      if (!value)
        fail(from, str("${", name, "} refers to ", name.empty() ? "nothing" : name,
                       ", which is not set; write a key such as ${run.dir}, or ${env:NAME}"));
    }
    visit(*value, 1);
    return *value;
  }

  Value from_environment(const Value& from, const std::string& spec) const {
    const std::size_t colon = spec.find(':');
    const std::string name = spec.substr(0, colon);
    if (const auto text = environment_(name)) return scalar(*text, from);
    if (colon == std::string::npos)
      fail(from, str("the environment variable ", name,
                     " is not set; set it, or write ${env:", name, ":fallback}"));
    return scalar(spec.substr(colon + 1), from);
  }

  // An empty variable is an empty text; null has to be written.
  static Value scalar(const std::string& text, const Value& from) {
    return text.empty() ? Value(text, from.origin) : Value::plain(text, from.origin);
  }

  Value& root_;
  const Environment& environment_;
  std::int64_t nodes_;
  std::unordered_set<const Value*> active_, done_;
};

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* text = std::getenv(name.c_str());
  return text ? std::optional<std::string>(text) : std::nullopt;
}

void resolve_references(Value& root, const Environment& environment) {
  Resolver(root, environment).visit(root, 1);
}

void escape_references(Value& value) {
  if (auto* list = value.as<List>())
    for (Value& item : *list) escape_references(item);
  if (auto* map = value.as<Map>())
    for (auto& [key, item] : *map) escape_references(item);
  if (auto* text = value.as<std::string>())
    for (std::size_t at = 0; (at = text->find("${", at)) != std::string::npos; at += 3)
      text->insert(at, "$");
}

}  // namespace floe::config

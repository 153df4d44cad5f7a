// Typed configurations: a struct describes its fields once, and parsing, defaults, validation, help
// and the reference page all come from that.
//
//   struct TrainConfig {
//     std::int64_t steps = 1000;
//     ClipConfig clip;
//   };
//   void describe(config::Schema<TrainConfig>& s);   // beside the struct, found by its argument
//
//   void describe(config::Schema<TrainConfig>& s) {
//     s.field("steps", &TrainConfig::steps, "Number of optimizer updates").at_least(1);
//     s.section("clip", &TrainConfig::clip, "Gradient clipping");
//     s.check("steps",
//             [](const TrainConfig& c) { return c.steps > 5 ? "" : "is too small for ..."; });
//   }
//
// Defaults are those of a default-constructed struct. Field types: see codec.h.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <stdexcept>
#include <type_traits>

#include "floe/schema/codec.h"
#include "floe/schema/yaml_text.h"

namespace floe::config {

// What a field must hold beyond its type.
template <class F>
struct Rule {
  std::string must;  // "be at least 1", after "must"
  std::function<bool(const F&)> holds;
  std::function<std::string(const Value&)> hint = nullptr;  // "; did you mean 'x'?" or nothing
};

// A rule about numbers holds for what an optional has, and for every element of a list or map.
template <class F, class Holds>
bool holds_for_all(const F& field, const Holds& holds) {
  if constexpr (requires { field.first; }) {  // an entry of a map
    return holds_for_all(field.second, holds);
  } else if constexpr (requires { field.has_value(); }) {
    return !field || holds_for_all(*field, holds);
  } else if constexpr (requires { field.begin(); } && !std::is_same_v<F, std::string>) {
    for (const auto& item : field)
      if (!holds_for_all(item, holds)) return false;
    return true;
  } else {
    return holds(field);
  }
}

template <class F>
class Field {
 public:
  Field(FieldInfo& info, std::vector<Rule<F>>& rules) : info_(&info), rules_(&rules) {}

  Field& at_least(double bound) {
    return number_rule(str("at least ", bound), [bound](double x) { return x >= bound; });
  }
  Field& at_most(double bound) {
    return number_rule(str("at most ", bound), [bound](double x) { return x <= bound; });
  }
  Field& more_than(double bound) {
    return number_rule(str("more than ", bound), [bound](double x) { return x > bound; });
  }
  Field& less_than(double bound) {
    return number_rule(str("less than ", bound), [bound](double x) { return x < bound; });
  }
  // A string or list must not be empty (nor any string in the list).
  Field& not_empty() {
    return rule("not empty", "not be empty", [](const F& field) {
      if constexpr (requires { field.size(); })
        if (field.size() == 0) return false;
      return holds_for_all(field, [](const auto& item) {
        if constexpr (requires { item.empty(); }) return !item.empty();
        return true;
      });
    });
  }
  // Named as in the configuration; works for strings, dtypes and lists of them.
  Field& one_of(const std::vector<std::string>& names) {
    const std::string text = "one of " + join(names);
    info_->choices = names;
    rule(text, "be " + text, [names](const F& field) {
      return holds_for_all(field, [&](const auto& item) {
        const Value value = Codec<std::decay_t<decltype(item)>>::write(item, Write::all);
        return std::find(names.begin(), names.end(), value.scalar_text()) != names.end();
      });
    });
    rules_->back().hint = [names](const Value& value) {
      return did_you_mean(value.scalar_text(), names);
    };
    return *this;
  }
  // Any other rule: `text` for help, `must` for messages ("... is 3, but must be even").
  Field& rule(const std::string& text, std::string must, std::function<bool(const F&)> holds) {
    info_->type += ", " + text;
    rules_->push_back({std::move(must), std::move(holds), nullptr});
    return *this;
  }
  // The configuration must give it; the struct's own value is no default.
  Field& required() {
    info_->required = true;
    info_->default_text.clear();
    return *this;
  }

 private:
  template <class Holds>
  Field& number_rule(const std::string& text, Holds holds) {
    return rule(text, "be " + text, [holds](const F& field) {
      return holds_for_all(field, [&](const auto& item) {
        if constexpr (requires { item.bytes; })
          return holds(static_cast<double>(item.bytes));
        else
          return holds(static_cast<double>(item));
      });
    });
  }

  FieldInfo* info_;
  std::vector<Rule<F>>* rules_;
};

// `path` leads on into the field; empty: the field itself goes.
template <class F>
void remove_field(F& field, const F& otherwise, std::span<const std::string> path, const Value& by,
                  const Place& place);

template <class T>
class Schema {
 public:
  template <class F>
  Field<F> field(const std::string& name, F T::*member, const std::string& help) {
    return field_at<F>(
        name, [member](auto& object) -> auto& { return object.*member; }, help);
  }

  // A field that is no plain member: `reach(object)` gives a reference to it, a const one of a
  // const object.
  template <class F, class Reach>
  Field<F> field_at(const std::string& name, Reach reach, const std::string& help) {
    for (const Bound& other : fields_)
      if (other.info.key == name) throw std::logic_error("a schema describes '" + name + "' twice");
    auto rules = std::make_shared<std::vector<Rule<F>>>();
    Bound& bound = fields_.emplace_back();
    bound.info.key = name;
    bound.info.help = help;
    bound.info.type = without_article(Codec<F>::type().one);
    bound.info.choices = Choices<F>::names();
    bound.read = [reach, rules](const Value& value, T& object, const Place& place) {
      if (!Codec<F>::read(value, reach(object), place)) return;
      for (const Rule<F>& rule : *rules)
        if (!rule.holds(reach(object))) {
          std::string found = write_inline_yaml(value);
          if (found.size() > 80) found = value.shown();
          place.fail(value, "is ", found, ", but must ", rule.must,
                     rule.hint ? rule.hint(value) : "");
          return;
        }
    };
    bound.write = [reach](const T& object, Write mode) {
      return Codec<F>::write(reach(object), mode);
    };
    bound.describe = [reach](const T& object, FieldInfo& info) {
      info.children = Codec<F>::children(reach(object));
      const Value value = Codec<F>::write(reach(object), Write::all);
      const bool is_block = value.template as<Map>() && !info.children.empty();
      if (!info.required && !is_block) info.default_text = write_inline_yaml(value);
    };
    bound.remove = [reach](T& object, std::span<const std::string> path, const Value& by,
                           const Place& place) {
      const T defaults{};
      remove_field(reach(object), reach(defaults), path, by, place);
    };
    return Field<F>(bound.info, *rules);
  }

  // A string, or another type whose values have names, that must be one of these.
  template <class F>
  Field<F> choice(const std::string& name, F T::*member, std::initializer_list<const char*> names,
                  const std::string& help) {
    Field<F> added = field(name, member, help);
    added.one_of({names.begin(), names.end()});
    return added;
  }

  // A nested struct that has a schema of its own.
  template <class S>
  void section(const std::string& name, S T::*member, const std::string& help) {
    field(name, member, help);
  }

  // The fields and checks of another struct that has a schema, as if they were this struct's own:
  // `part` gives that struct out of a T, const or not, or is a pointer to such a member.
  template <class S, class Part>
  void embed(Part part);

  // A check across fields, made when every field alone is right. It gives the end of a sentence
  // that begins with the field's path ("is 9, but must divide world_size"), or nothing. The problem
  // is reported at the field named `key`.
  void check(std::string key, std::function<std::string(const T&)> problem) {
    checks_.push_back({std::move(key), std::move(problem)});
  }

  // Called by Codec<T> and the functions below.
  // Removes the field at the end of the path: what can be off is off, anything else as in a
  // default-constructed struct.
  void remove(T& object, std::span<const std::string> path, const Value& by,
              const Place& place) const;
  bool read(const Value& value, T& out, const Place& place) const;
  Value write(const T& object, Write mode) const;
  std::vector<FieldInfo> describe_fields(const T& defaults) const;
  std::vector<std::string> keys() const;

 private:
  struct Bound {
    FieldInfo info;
    std::function<void(const Value&, T&, const Place&)> read;
    std::function<Value(const T&, Write)> write;
    std::function<void(const T&, FieldInfo&)> describe;
    std::function<void(T&, std::span<const std::string>, const Value&, const Place&)> remove;
  };
  struct Check {
    std::string key;
    std::function<std::string(const T&)> problem;
  };
  template <class Other>
  friend class Schema;

  std::string unknown_key(const Place& place, const std::string& name) const;
  static std::string without_article(const std::string& type) {
    if (type.starts_with("a ")) return type.substr(2);
    return type.starts_with("an ") ? type.substr(3) : type;
  }
  std::deque<Bound> fields_;  // a deque: Field keeps addresses
  std::vector<Check> checks_;
};

template <class T>
concept Described = std::is_class_v<T> && requires(Schema<T>& schema) {
  describe(schema);
};

template <Described T>
const Schema<T>& schema_of() {
  static const Schema<T> schema = [] {
    Schema<T> built;
    describe(built);
    return built;
  }();
  return schema;
}

template <class T>
template <class S, class Part>
void Schema<T>::embed(Part part) {
  const Schema<S>& theirs = schema_of<S>();
  for (const auto& field : theirs.fields_) {
    for (const Bound& other : fields_)
      if (other.info.key == field.info.key)
        throw std::logic_error("a schema describes '" + field.info.key + "' twice");
    Bound& bound = fields_.emplace_back();
    bound.info = field.info;
    bound.read = [&field, part](const Value& value, T& object, const Place& place) {
      field.read(value, std::invoke(part, object), place);
    };
    bound.write = [&field, part](const T& object, Write mode) {
      return field.write(std::invoke(part, object), mode);
    };
    bound.describe = [&field, part](const T& object, FieldInfo& info) {
      field.describe(std::invoke(part, object), info);
    };
    bound.remove = [&field, part](T& object, std::span<const std::string> path, const Value& by,
                                  const Place& place) {
      field.remove(std::invoke(part, object), path, by, place);
    };
  }
  for (const auto& other : theirs.checks_)
    check(other.key,
          [&other, part](const T& object) { return other.problem(std::invoke(part, object)); });
}

template <Described T>
struct Codec<T> {
  static TypeName type() { return {"a block", "blocks"}; }
  static bool read(const Value& value, T& out, const Place& place) {
    return schema_of<T>().read(value, out, place);
  }
  static Value write(const T& object, Write mode) { return schema_of<T>().write(object, mode); }
  static std::vector<FieldInfo> children(const T& defaults) {
    return schema_of<T>().describe_fields(defaults);
  }
};

template <class F>
void remove_field(F& field, const F& otherwise, std::span<const std::string> path, const Value& by,
                  const Place& place) {
  if constexpr (Described<F>) {
    if (!path.empty()) return schema_of<F>().remove(field, path, by, place);
    field = otherwise;
  } else if constexpr (requires { field.has_value(); }) {
    if (path.empty())
      field.reset();
    else if (field)  // nothing can be removed from what is off
      remove_field(*field, typename F::value_type{}, path, by, place);
  } else if (!path.empty()) {
    place.fail(by, "has no '", path.front(), "'; remove ", place.path, " itself");
  } else if constexpr (std::is_same_v<F, bool>) {
    field = false;
  } else {
    field = otherwise;
  }
}

template <class T>
void Schema<T>::remove(T& object, std::span<const std::string> path, const Value& by,
                       const Place& place) const {
  for (const Bound& field : fields_)
    if (field.info.key == path.front())
      return field.remove(object, path.subspan(1), by, place.key(path.front()));
  place.problems.add(by.origin, unknown_key(place, path.front()));
}

template <class T>
std::string Schema<T>::unknown_key(const Place& place, const std::string& name) const {
  const std::string near = did_you_mean(name, keys());
  return str("unknown key '", place.key(name).path, "'",
             near.empty() ? str("; the keys here are ", join(keys())) : near);
}

template <class T>
bool Schema<T>::read(const Value& value, T& out, const Place& place) const {
  static const Map kNone;
  const std::size_t before = place.problems.count();
  const Map* map = value.is_null() ? &kNone : value.as<Map>();  // "train:" with nothing below it
  if (!map)
    return place.fail(value, "must be a block with the keys ", join(keys()), ", not ",
                      value.shown());
  for (const auto& [name, item] : *map) {
    const auto bound =
        std::find_if(fields_.begin(), fields_.end(),
                     [&name = name](const Bound& field) { return field.info.key == name; });
    if (bound != fields_.end()) {
      bound->read(item, out, place.key(name));
    } else {
      place.problems.add(item.origin, unknown_key(place, name));
    }
  }
  for (const Bound& field : fields_)
    if (field.info.required && !map->find(field.info.key))
      place.key(field.info.key).fail(value, "is missing; set it: ", field.info.help);
  if (place.problems.count() != before) return false;
  for (const Check& check : checks_)
    if (const std::string problem = check.problem(out); !problem.empty()) {
      const Value* culprit = map->find(check.key);
      place.key(check.key).fail(culprit ? *culprit : value, problem);
    }
  return place.problems.count() == before;
}

template <class T>
Value Schema<T>::write(const T& object, Write mode) const {
  Map map;
  for (const Bound& field : fields_)
    if (mode == Write::all || !field.info.required) map[field.info.key] = field.write(object, mode);
  return Value(std::move(map));
}

template <class T>
std::vector<FieldInfo> Schema<T>::describe_fields(const T& defaults) const {
  std::vector<FieldInfo> infos;
  for (const Bound& field : fields_) field.describe(defaults, infos.emplace_back(field.info));
  return infos;
}

template <class T>
std::vector<std::string> Schema<T>::keys() const {
  std::vector<std::string> keys;
  for (const Bound& field : fields_) keys.push_back(field.info.key);
  return keys;
}

// The struct that the tree describes, defaults where it says nothing. Throws one ConfigError that
// holds every problem, a line each.
template <Described T>
T bind(const Value& root) {
  T out{};
  Problems problems;
  schema_of<T>().read(root, out, Place{"", problems});
  problems.throw_if_any();
  return out;
}

template <Described T>
std::vector<FieldInfo> fields_of() {
  return schema_of<T>().describe_fields(T{});
}

}  // namespace floe::config

#include "floe/io/torch_file_names.h"

#include "floe/core/error.h"
#include "floe/io/torch_file_tensor.h"

namespace floe {
namespace {

using pickle::Kind;
using pickle::Object;
using pickle::Value;

class Walk {
 public:
  using Visit = std::function<void(const std::string&, const Value&)>;

  Walk(std::size_t pickle_bytes, const std::string& file, const Visit& visit)
      : most_values_(1000 + 8 * pickle_bytes),
        most_letters_(65536 + 64 * pickle_bytes),
        file_(file),
        visit_(visit) {}

  void walk(const Value& value) {
    require<DataError>(++values_ <= most_values_ && letters_ <= most_letters_, "'", file_,
                       "' shares values so often that its tree is far larger than the file: such a "
                       "file was not made by saving a model");
    if (is_torch_tensor(value)) {
      letters_ += name_.size();
      visit_(name_, value);
    } else if (value.has_entries()) {
      for (const auto& [key, item] : value.entries())
        below(key.is(Kind::text) ? key.text() : shown(key), item);
    } else if (value.is(Kind::object)) {
      walk_object(value.object());
    } else if (value.is(Kind::list) || value.is(Kind::tuple)) {
      walk_items(value.items());
    }
  }

 private:
  void below(const std::string& part, const Value& value) {
    const std::size_t length = name_.size();
    if (depth_ > 0) name_ += '.';
    name_ += part;
    letters_ += part.size();
    ++depth_;
    walk(value);
    --depth_;
    name_.resize(length);
  }

  void walk_items(const pickle::Items& items) {
    for (std::size_t i = 0; i < items.size(); ++i) below(std::to_string(i), items[i]);
  }

  void walk_object(const Object& object) {
    // TorchScript marks the types of its lists and dicts with a call around them.
    if (object.callable.is(Kind::global) &&
        object.callable.global().module == "torch.jit._pickle") {
      if (!object.args.items().empty()) walk(object.args.items()[0]);
      return;
    }
    walk_items(object.items);
    walk_state(object.state);
  }

  // Attributes: a dict, or a pair of the dict and that of the slots.
  void walk_state(const Value& state) {
    const bool pair = state.is(Kind::tuple) && state.items().size() == 2 &&
                      (state.items()[0].is_none() || state.items()[0].is(Kind::dict)) &&
                      state.items()[1].is(Kind::dict);
    if (pair)
      for (const Value& part : state.items()) walk(part);
    else
      walk(state);
  }

  const std::size_t most_values_, most_letters_;
  const std::string& file_;
  const Visit& visit_;
  std::string name_;
  std::size_t depth_ = 0, values_ = 0, letters_ = 0;
};

}  // namespace

void for_each_torch_tensor(const Value& root, std::size_t pickle_bytes, const std::string& file,
                           const std::function<void(const std::string&, const Value&)>& visit) {
  Walk(pickle_bytes, file, visit).walk(root);
}

}  // namespace floe

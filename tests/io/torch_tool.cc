// For the Python tests of torch files:
//   torch_tool tree PATH          what a file of torch.save says, as JSON; tensors with their hash
//   torch_tool item PATH OFFSET LENGTH   the same of an archive inside of a file
//   torch_tool copy PATH OUT      everything in PATH, written anew by TorchFileWriter
//   torch_tool pickle PATH        what a plain pickle says, as JSON
//   torch_tool repickle PATH OUT  a plain pickle, read and written
//   torch_tool refused PATH       the tensors that cannot be read, and why
// In JSON each value is a list of its kind and its content, so that nothing is lost.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "floe/core/error.h"
#include "floe/io/file/file.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe {
namespace {

using nlohmann::json;
using pickle::Kind;
using pickle::Value;

std::string hex(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(c));
    text += digits;
  }
  return text;
}

json tensor_json(const TensorSource& source, const TensorInfo& info) {
  std::string bytes(static_cast<std::size_t>(info.bytes()), '\0');
  source.read(info, 0, info.numel(), std::as_writable_bytes(std::span(bytes)));
  return {"tensor", safetensors_name(info.dtype), info.shape, hex(bytes)};
}

class Dump {
 public:
  explicit Dump(const TorchFile* file) : file_(file) {}

  json value(const Value& value) const {
    if (file_)
      if (const TensorInfo* info = file_->tensor_at(value)) return tensor_json(*file_, *info);
    switch (value.kind()) {
      case Kind::none: return {"none"};
      case Kind::boolean: return {"bool", value.boolean()};
      case Kind::integer: return {"int", std::to_string(value.integer())};
      case Kind::big_integer: return {"big", hex(value.bytes())};
      case Kind::real: return {"float", real(value.real())};
      case Kind::text: return {"text", value.text()};
      case Kind::bytes: return {"bytes", hex(value.bytes())};
      case Kind::list: return {"list", items(value.items())};
      case Kind::tuple: return {"tuple", items(value.items())};
      case Kind::dict: return {"dict", entries(value.entries())};
      case Kind::set: return {"set", items(value.items())};
      case Kind::frozen_set: return {"frozenset", items(value.items())};
      case Kind::persistent: return {"persistent", this->value(value.persistent_id())};
      case Kind::global: return {"global", value.global().module, value.global().name};
      case Kind::object: return object(value.object());
    }
    return nullptr;
  }

 private:
  static std::string real(double number) {
    char text[64];
    std::snprintf(text, sizeof text, "%a", number);
    return text;
  }
  json items(const pickle::Items& items) const {
    json all = json::array();
    for (const Value& item : items) all.push_back(value(item));
    return all;
  }
  json entries(const pickle::Entries& entries) const {
    json all = json::array();
    for (const auto& [key, item] : entries) all.push_back(json::array({value(key), value(item)}));
    return all;
  }
  json object(const pickle::Object& object) const {
    return {{"object", object.how == pickle::Object::How::reduce ? "reduce" : "new"},
            {"callable", value(object.callable)},
            {"args", value(object.args)},
            {"items", items(object.items)},
            {"entries", entries(object.entries)},
            {"state", object.has_state ? value(object.state) : json()}};
  }

  const TorchFile* file_;
};

// The tree of `file` with the tensors of `writer` in the places of its own.
class Copy {
 public:
  Copy(const TorchFile& file, TorchFileWriter& writer) : file_(file) {
    for (const std::string& name : file.names()) {
      const TensorInfo& info = file.get(name);
      tensors_[name] = writer.declare(name, info.dtype, info.shape);
    }
  }

  Value value(const Value& value) const {
    if (const TensorInfo* info = file_.tensor_at(value)) return tensors_.at(info->name);
    if (value.is(Kind::list)) return pickle::list(items(value.items()));
    if (value.is(Kind::tuple)) return pickle::tuple(items(value.items()));
    if (value.is(Kind::dict)) return pickle::dict(entries(value.entries()));
    if (value.has_entries()) return pickle::ordered_dict(entries(value.entries()));
    return value;
  }

 private:
  pickle::Items items(const pickle::Items& items) const {
    pickle::Items all;
    for (const Value& item : items) all.push_back(value(item));
    return all;
  }
  pickle::Entries entries(const pickle::Entries& entries) const {
    pickle::Entries all;
    for (const auto& [key, item] : entries) all.emplace_back(value(key), value(item));
    return all;
  }

  const TorchFile& file_;
  std::map<std::string, Value> tensors_;
};

void copy(const std::string& path, const std::string& out) {
  const TorchFile file(path);
  TorchFileWriter writer(out);
  const Value root = Copy(file, writer).value(file.root());
  // All tensors side by side, in pieces.
  constexpr std::int64_t kPiece = 9973;
  std::vector<std::byte> bytes;
  bool more = true;
  for (std::int64_t at = 0; more; at += kPiece) {
    more = false;
    for (const std::string& name : file.names()) {
      const TensorInfo& info = file.get(name);
      const std::int64_t count = std::min(kPiece, info.numel() - at);
      if (count <= 0) continue;
      bytes.resize(static_cast<std::size_t>(count * size_of(info.dtype)));
      file.read(info, at, count, bytes);
      writer.write(name, bytes);
      more = true;
    }
  }
  writer.finish(root);
}

Value read_pickle(const std::string& path) {
  return pickle::read(read_text(path, std::int64_t{1} << 30), path);
}

void run(const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : words[0];
  if (words.size() == 2 && command == "tree") {
    const TorchFile file(words[1]);
    std::puts(Dump(&file).value(file.root()).dump().c_str());
  } else if (words.size() == 4 && command == "item") {
    const TorchFile file(std::make_shared<const File>(words[1]), std::stoll(words[2]),
                         std::stoll(words[3]));
    std::puts(Dump(&file).value(file.root()).dump().c_str());
  } else if (words.size() == 2 && command == "pickle") {
    std::puts(Dump(nullptr).value(read_pickle(words[1])).dump().c_str());
  } else if (words.size() == 2 && command == "refused") {
    const TorchFile file(words[1]);
    for (const auto& [name, why] : file.refused())
      std::printf("%s %s\n", name.c_str(), why.c_str());
  } else if (words.size() == 3 && command == "copy") {
    copy(words[1], words[2]);
  } else if (words.size() == 3 && command == "repickle") {
    write_file_atomically(words[2], pickle::write(read_pickle(words[1])));
  } else {
    throw ConfigError(
        "usage: torch_tool tree|pickle|refused PATH | item PATH OFFSET LENGTH | "
        "copy|repickle PATH OUT");
  }
}

}  // namespace
}  // namespace floe

int main(int argc, char** argv) {
  try {
    floe::run({argv + 1, argv + argc});
    return 0;
  } catch (const floe::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return static_cast<int>(error.exit());
  }
}

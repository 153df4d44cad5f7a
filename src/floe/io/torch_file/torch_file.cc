#include "floe/io/torch_file/torch_file.h"

#include <cstddef>
#include <functional>
#include <string>

#include "floe/core/error.h"
#include "floe/io/file/json_text.h"
#include "floe/io/torch_file/pickle.h"
#include "floe/io/torch_file/torch_file_tensor.h"

namespace floe {
namespace {

using pickle::Kind;
using pickle::Object;
using pickle::Value;

constexpr std::int64_t kMostPickleBytes = std::int64_t{1} << 28;  // millions of tensors
constexpr std::int64_t kAlignment = 64;                           // as torch.save's
const std::string kPrefix = "archive/";

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

// Calls `visit` for every tensor with its dotted name, in the order of the tree. Dict keys, places
// in lists and attributes of objects are the parts of a name; a tensor that is itself the root has
// the empty name.
//
// A value that is shared has several names, so a small pickle can stand for a huge tree. What is
// visited is therefore bounded by `pickle_bytes`, far above what saved training states need; beyond
// that a DataError names the file.
void for_each_torch_tensor(const Value& root, std::size_t pickle_bytes, const std::string& file,
                           const std::function<void(const std::string&, const Value&)>& visit) {
  Walk(pickle_bytes, file, visit).walk(root);
}

// The formats before the zip archive: pickles one after another, the first of them a magic number,
// and before that a tar archive.
bool is_legacy(const File& file) {
  constexpr std::string_view kMagic = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19";
  constexpr std::string_view kTar = "ustar";
  constexpr std::int64_t kTarOffset = 257;
  const auto has = [&](std::int64_t offset, std::string_view text) {
    if (file.size() < offset + static_cast<std::int64_t>(text.size())) return false;
    std::string bytes(text.size(), '\0');
    file.read_at(offset, std::as_writable_bytes(std::span(bytes)));
    return bytes == text;
  };
  return has(0, kMagic) || has(kTarOffset, kTar);
}

std::shared_ptr<const File> open_archive(const std::string& path) {
  auto file = std::make_shared<const File>(path);
  require<DataError>(!is_legacy(*file), "'", path,
                     "' has the format of torch before 1.6, which floe does not read; convert it "
                     "with Python: torch.save(torch.load('",
                     path, "', map_location='cpu'), 'new.pt')");
  require<DataError>(ZipReader::is_zip(*file), "'", path,
                     "' is no file of torch.save or torch.jit.save: it does not begin like a zip "
                     "archive");
  return file;
}

}  // namespace

TorchFile::TorchFile(const std::string& path, const std::string& under) : zip_(open_archive(path)) {
  open(under);
}

TorchFile::TorchFile(std::shared_ptr<const File> file, std::int64_t offset, std::int64_t length,
                     const std::string& under)
    : zip_(std::move(file), offset, length) {
  open(under);
}

void TorchFile::open(const std::string& under) {
  const std::string& path = zip_.file()->path();
  require<DataError>(!zip_.entries().empty(), "'", path, "' is an empty zip archive");
  const std::string& first = zip_.entries()[0].name;
  prefix_ = first.substr(0, first.find('/') + 1);
  const ZipEntry* pickle = zip_.find(prefix_ + "data.pkl");
  require<DataError>(pickle, "'", path, "' is no file of torch.save: the zip archive has no entry ",
                     quoted(prefix_ + "data.pkl"));
  if (const ZipEntry* order = zip_.find(prefix_ + "byteorder"))
    require<DataError>(zip_.read(*order, 16) == "little", "'", path,
                       "' was saved on a big-endian machine; floe reads little-endian files only");
  is_torchscript_ = zip_.find(prefix_ + "constants.pkl") != nullptr;

  root_ = pickle::read(zip_.read(*pickle, kMostPickleBytes), path);
  bool is_below = under.empty();
  for_each_torch_tensor(root_, static_cast<std::size_t>(pickle->size), path,
                        [&](const std::string& name, const pickle::Value& value) {
                          if (under.empty()) return add(name, value);
                          if (!name.starts_with(under + '.')) return;
                          is_below = true;
                          add(name.substr(under.size() + 1), value);
                        });
  require<DataError>(is_below, "'", path, "' has no tensors under ", quoted(under));
  keep_open(zip_.file());
}

void TorchFile::add(const std::string& name, const pickle::Value& value) {
  if (tensors_.contains(name) || refused_.contains(name)) {
    tensors_.erase(name);
    strided_.erase(name);
    refused_[name] = "has a name that another tensor has too";
    return;
  }
  const auto about = [&](const std::string& defect) {
    return str("'", zip_.file()->path(), "': tensor ", quoted(name), " ", defect);
  };
  TorchTensor tensor;
  try {
    tensor = parse_torch_tensor(value);
  } catch (const UnreadableTensor& error) {
    refused_[name] = error.what();
    return;
  } catch (const DataError& error) {
    throw DataError(about(error.what()));
  }
  const std::string entry_name = prefix_ + "data/" + tensor.storage;
  const ZipEntry* entry = zip_.find(entry_name);
  if (!entry)
    throw DataError(
        about(str("has its bytes in the zip entry ", quoted(entry_name), ", which is missing")));
  if (entry->size / size_of(tensor.dtype) != tensor.storage_numel)
    throw DataError(
        about(str("has a storage of ", tensor.storage_numel, " elements of ", name_of(tensor.dtype),
                  ", but its zip entry ", quoted(entry_name), " has ", entry->size, " bytes")));
  const std::int64_t offset = data_offset(*entry);
  TensorInfo info{name, tensor.shape, tensor.dtype, {}};
  if (tensor.is_contiguous())
    info.ranges.push_back(
        {zip_.file()->path(), offset + tensor.offset * size_of(tensor.dtype), info.bytes()});
  else
    strided_[name] = {std::move(tensor), offset};
  tensors_[name] = std::move(info);
  name_at_.emplace(value.identity(), name);
}

std::int64_t TorchFile::data_offset(const ZipEntry& entry) {
  auto found = data_offsets_.find(&entry);
  if (found == data_offsets_.end())
    found = data_offsets_.emplace(&entry, zip_.data_offset(entry)).first;
  return found->second;
}

std::vector<std::string> TorchFile::names() const { return names_in(tensors_); }

const TensorInfo* TorchFile::find(const std::string& name) const {
  if (const auto found = tensors_.find(name); found != tensors_.end()) return &found->second;
  if (const auto refused = refused_.find(name); refused != refused_.end())
    throw DataError(
        str("'", zip_.file()->path(), "': tensor ", quoted(name), " ", refused->second));
  return nullptr;
}

const TensorInfo* TorchFile::tensor_at(const pickle::Value& value) const {
  const auto found = name_at_.find(value.identity());
  const auto tensor = found == name_at_.end() ? tensors_.end() : tensors_.find(found->second);
  return tensor == tensors_.end() ? nullptr : &tensor->second;
}

TorchFileWriter::TorchFileWriter(const std::string& path) : zip_(path, kAlignment) {
  zip_.add(kPrefix + "version", "3\n");
  zip_.add(kPrefix + ".format_version", "1");
  zip_.add(kPrefix + ".storage_alignment", std::to_string(kAlignment));
  zip_.add(kPrefix + "byteorder", "little");
}

pickle::Value TorchFileWriter::declare(const std::string& name, DType dtype,
                                       const std::vector<std::int64_t>& shape) {
  std::int64_t bytes = size_of(dtype);
  for (const std::int64_t size : shape)
    require(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), "'", zip_.path(),
            "': tensor ", quoted(name), " has the impossible shape [", join(shape), "]");
  const std::string key = std::to_string(entries_.size());
  const auto [entry, is_new] = entries_.emplace(name, 0);
  require(is_new, "'", zip_.path(), "': tensor ", quoted(name), " was declared twice");
  entry->second = zip_.declare(kPrefix + "data/" + key, bytes);
  return torch_tensor_value(dtype, key, shape);
}

void TorchFileWriter::write(const std::string& name, std::span<const std::byte> bytes) {
  const auto entry = entries_.find(name);
  require(entry != entries_.end(), "'", zip_.path(), "': tensor ", quoted(name),
          " was not declared");
  const auto missing = static_cast<std::size_t>(zip_.missing(entry->second));
  require(bytes.size() <= missing, "'", zip_.path(), "': tensor ", quoted(name), " lacks ", missing,
          " bytes, but ", bytes.size(), " more were written");
  zip_.write(entry->second, bytes);
}

void TorchFileWriter::finish(const pickle::Value& root) {
  for (const auto& [name, entry] : entries_)
    require(zip_.missing(entry) == 0, "'", zip_.path(), "': tensor ", quoted(name), " lacks ",
            zip_.missing(entry), " bytes");
  zip_.add(kPrefix + "data.pkl", pickle::write(root));
  zip_.finish();
}

}  // namespace floe

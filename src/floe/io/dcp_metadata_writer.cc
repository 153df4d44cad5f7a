#include "floe/io/dcp_metadata_writer.h"

#include <utility>

#include "floe/core/error.h"
#include "floe/io/json_text.h"
#include "floe/io/pickle_writer.h"

namespace floe {
namespace {

using pickle::Value;

Value metadata_class(const char* name) {
  return pickle::global("torch.distributed.checkpoint.metadata", name);
}

const char* torch_name(DType dtype) {
  switch (dtype) {
    case DType::f64: return "float64";
    case DType::f32: return "float32";
    case DType::f16: return "float16";
    case DType::bf16: return "bfloat16";
    case DType::f8_e4m3: return "float8_e4m3fn";
    case DType::f8_e5m2: return "float8_e5m2";
    case DType::i64: return "int64";
    case DType::i32: return "int32";
    case DType::i16: return "int16";
    case DType::i8: return "int8";
    case DType::u8: return "uint8";
    case DType::boolean: return "bool";
  }
  throw Error("a tensor has an unknown dtype");
}

Value size(const std::vector<std::int64_t>& dims) {
  pickle::Items items;
  for (const std::int64_t dim : dims) items.emplace_back(dim);
  return pickle::reduce(pickle::global("torch", "Size"), {pickle::tuple(std::move(items))});
}

Value properties(DType dtype) {
  return pickle::new_object(
      metadata_class("TensorProperties"), {},
      pickle::tuple(
          {pickle::global("torch", torch_name(dtype)),
           pickle::reduce(pickle::global("torch.serialization", "_get_layout"), {"torch.strided"}),
           false, pickle::reduce(metadata_class("_MEM_FORMAT_ENCODING"), {0}), false}));
}

class Writer {
 public:
  explicit Writer(const DcpMetadata& metadata) : metadata_(metadata) {
    for (const std::string& file : metadata.files) files_.emplace_back(file);
  }

  std::string write() {
    for (const auto& [name, tensor] : metadata_.tensors) add(Value(name), tensor);
    for (const auto& [name, place] : metadata_.objects) add(Value(name), place);
    pickle::Entries paths;
    for (const auto& [name, path] : metadata_.paths) paths.emplace_back(Value(name), path);
    const Value storage_meta = pickle::new_object(metadata_class("StorageMeta"), {},
                                                  pickle::dict({{"checkpoint_id", Value()},
                                                                {"save_id", Value()},
                                                                {"load_id", Value()},
                                                                {"modules", pickle::list({})}}));
    return pickle::write(
        pickle::new_object(metadata_class("Metadata"), {},
                           pickle::dict({{"state_dict_metadata", pickle::dict(std::move(entries_))},
                                         {"planner_data", pickle::dict(std::move(paths))},
                                         {"storage_data", pickle::dict(std::move(places_))},
                                         {"storage_meta", storage_meta},
                                         {"version", "1.0.0"}})));
  }

 private:
  void add(const Value& name, const DcpTensor& tensor) {
    require(tensor.dtype.has_value(), "the tensor ", quoted(name.text()), " has no dtype to write");
    pickle::Items chunks;
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const DcpChunk& chunk = tensor.chunks[i];
      const Value offsets = size(chunk.offsets);
      chunks.push_back(
          pickle::new_object(metadata_class("ChunkStorageMetadata"), {},
                             pickle::dict({{"offsets", offsets}, {"sizes", size(chunk.sizes)}})));
      add_place(pickle::dict(
                    {{"fqn", name}, {"offset", offsets}, {"index", static_cast<std::int64_t>(i)}}),
                chunk.place);
    }
    entries_.emplace_back(
        name, pickle::new_object(metadata_class("TensorStorageMetadata"), {},
                                 pickle::dict({{"properties", properties(*tensor.dtype)},
                                               {"size", size(tensor.shape)},
                                               {"chunks", pickle::list(std::move(chunks))}})));
  }

  void add(const Value& name, const DcpPlace& place) {
    entries_.emplace_back(name, pickle::new_object(metadata_class("BytesStorageMetadata"), {}));
    add_place(pickle::dict({{"fqn", name}, {"index", Value()}}), place);
  }

  void add_place(Value index, const DcpPlace& place) {
    places_.emplace_back(
        pickle::new_object(metadata_class("MetadataIndex"), {}, std::move(index)),
        pickle::new_object(
            pickle::global("torch.distributed.checkpoint.filesystem", "_StorageInfo"), {},
            pickle::dict({{"relative_path", files_.at(place.file)},
                          {"offset", place.offset},
                          {"length", place.length}})));
  }

  const DcpMetadata& metadata_;
  std::vector<Value> files_;
  pickle::Entries entries_, places_;
};

}  // namespace

std::string write_dcp_metadata(const DcpMetadata& metadata) { return Writer(metadata).write(); }

}  // namespace floe

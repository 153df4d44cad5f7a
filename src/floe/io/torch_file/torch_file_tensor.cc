#include "floe/io/torch_file/torch_file_tensor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <string_view>

#include "floe/core/bytes.h"
#include "floe/io/torch_file/torch_file.h"

namespace floe {
namespace {

using pickle::Items;
using pickle::Kind;
using pickle::Value;

struct StorageClass {
  std::string_view name;
  DType dtype;
};

// Newer element types have no class of their own: UntypedStorage and a dtype beside it.
constexpr std::array<StorageClass, 10> kStorageClasses{{
    {"DoubleStorage", DType::f64},
    {"FloatStorage", DType::f32},
    {"HalfStorage", DType::f16},
    {"BFloat16Storage", DType::bf16},
    {"LongStorage", DType::i64},
    {"IntStorage", DType::i32},
    {"ShortStorage", DType::i16},
    {"CharStorage", DType::i8},
    {"ByteStorage", DType::u8},
    {"BoolStorage", DType::boolean},
}};

// As torch calls those element types.
constexpr std::string_view untyped_name(DType dtype) {
  return dtype == DType::f8_e4m3 ? "float8_e4m3fn" : "float8_e5m2";
}

constexpr std::string_view kReadable =
    "; floe reads float64, float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, "
    "int16, int8, uint8 and bool";

// Not require(): a file has many tensors, and shown() takes longer than all the rest.
template <class ErrorType = DataError, class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  throw ErrorType(str(parts...));
}

std::int64_t count_of(const Value& value, std::string_view what) {
  if (!value.is(Kind::integer) || value.integer() < 0)
    refuse("has ", shown(value), " as ", what, "; expected an integer from 0");
  return value.integer();
}

DType dtype_of_storage(const Value& storage_class) {
  if (storage_class.is(Kind::global) && storage_class.global().module == "torch")
    for (const StorageClass& known : kStorageClasses)
      if (known.name == storage_class.global().name) return known.dtype;
  refuse<UnreadableTensor>("lies in a ", shown(storage_class), kReadable);
}

// ('storage', class, key, location, number of elements)
bool is_storage(const Value& value) {
  if (!value.is(Kind::persistent) || !value.persistent_id().is(Kind::tuple)) return false;
  const Items& id = value.persistent_id().items();
  return id.size() >= 5 && id[0].is(Kind::text) && id[0].text() == "storage" &&
         id[2].is(Kind::text);
}

void set_storage(TorchTensor& tensor, const Value& storage, std::optional<DType> dtype) {
  if (!is_storage(storage)) refuse("has no storage, but ", shown(storage));
  const Items& id = storage.persistent_id().items();
  tensor.storage = id[2].text();
  tensor.storage_numel = count_of(id[4], "size of its storage");
  if (!dtype) {
    tensor.dtype = dtype_of_storage(id[1]);
    return;
  }
  if (!id[1].is(Kind::global) || id[1].global().name != "UntypedStorage")
    refuse("has a dtype of its own and lies in a ", shown(id[1]), "; expected an UntypedStorage");
  tensor.dtype = *dtype;
  tensor.storage_numel /= size_of(*dtype);  // untyped storages count bytes
}

void check_extent(const TorchTensor& tensor) {
  const auto &shape = tensor.shape, &strides = tensor.strides;
  if (shape.size() != strides.size())
    refuse("has shape [", join(shape), "], but strides [", join(strides), "]");
  std::int64_t bytes = size_of(tensor.dtype), last = tensor.offset, step = 0;
  for (const std::int64_t size : shape)
    if (__builtin_mul_overflow(bytes, size, &bytes))
      refuse("has shape [", join(shape), "], which is more than 2^63 bytes");
  if (bytes == 0) return;
  bool inside = true;
  for (std::size_t d = 0; d < shape.size(); ++d)
    inside = inside && !__builtin_mul_overflow(shape[d] - 1, strides[d], &step) &&
             !__builtin_add_overflow(last, step, &last);
  if (!inside || last >= tensor.storage_numel)
    refuse("has shape [", join(shape), "], strides [", join(strides), "] and offset ",
           tensor.offset, ", which reach beyond its storage of ", tensor.storage_numel,
           " elements");
}

TorchTensor parse_strided(const Items& args, std::size_t least, std::optional<DType> dtype) {
  if (args.size() < least)
    refuse("is made from ", args.size(), " values; expected at least ", least);
  TorchTensor tensor;
  set_storage(tensor, args[0], dtype);
  tensor.offset = count_of(args[1], "offset");
  tensor.shape = parse_torch_size(args[2], "shape");
  tensor.strides = parse_torch_size(args[3], "strides");
  check_extent(tensor);
  // What means nothing may hold any number: make it harmless for arithmetic.
  if (tensor.numel() == 0) tensor.offset = 0;
  for (std::size_t d = 0; d < tensor.shape.size(); ++d)
    if (tensor.shape[d] == 1) tensor.strides[d] = 0;
  return tensor;
}

// Views that torch negates or conjugates when they are used; their storage has other numbers.
void refuse_lazy(const Items& args, std::size_t at) {
  if (args.size() <= at || !args[at].has_entries()) return;
  for (const auto& [key, value] : args[at].entries())
    if (value.is(Kind::boolean) && value.boolean())
      refuse<UnreadableTensor>("is a view with ", shown(key),
                               ", whose numbers are not those of its "
                               "storage: save it with .resolve_neg()");
}

TorchTensor parse_call(const Value& callable, const Value& args) {
  const Items& items = args.items();
  const auto& name = callable.global().name;
  if (name == "_rebuild_tensor" || name == "_rebuild_tensor_v2") {
    refuse_lazy(items, 6);
    return parse_strided(items, 4, std::nullopt);
  }
  if (name == "_rebuild_tensor_v3") {
    if (items.size() < 7) refuse("is made without a dtype");
    refuse_lazy(items, 7);
    return parse_strided(items, 7, parse_torch_dtype(items[6]));
  }
  if (name == "_rebuild_parameter" || name == "_rebuild_parameter_with_state") {
    if (items.empty() || !is_torch_tensor(items[0])) refuse("is a parameter of no tensor");
    return parse_torch_tensor(items[0]);
  }
  if (name == "_rebuild_from_type_v2" || name == "_rebuild_from_type") {
    // (function, type, its arguments, state)
    if (items.size() < 3 || !items[0].is(Kind::global) || !items[2].is(Kind::tuple))
      refuse<UnreadableTensor>("is of a type that floe does not read: ", shown(args));
    return parse_call(items[0], items[2]);
  }
  refuse<UnreadableTensor>(
      "is made by ", callable.global().module, ".", name,
      ", which floe does not read (sparse, quantized, meta and distributed tensors are not plain "
      "bytes): save it as a plain tensor");
}

constexpr std::int64_t kWindowBytes = std::int64_t{1} << 24;
constexpr std::int64_t kSmallSpanBytes = std::int64_t{1} << 16;
// About what is copied in the time of one more read call.
constexpr std::int64_t kSpanBytesPerElement = 1024;

// The place of element `number` along each dimension.
std::vector<std::int64_t> place_of(const TorchTensor& view, std::int64_t number) {
  std::vector<std::int64_t> place(view.shape.size());
  for (std::size_t d = place.size(); d-- > 0; number /= view.shape[d])
    place[d] = number % view.shape[d];
  return place;
}

struct Span {
  std::int64_t first, last;  // elements of the storage
};

// All storage between which the elements lie: exact where the places agree and in the first
// dimension in which they differ, whole below that.
Span span_of(const TorchTensor& view, std::int64_t first, std::int64_t count) {
  const auto from = place_of(view, first), to = place_of(view, first + count - 1);
  Span span{view.offset, view.offset};
  bool differ = false;
  for (std::size_t d = 0; d < from.size(); ++d) {
    span.first += differ ? 0 : from[d] * view.strides[d];
    span.last += (differ ? view.shape[d] - 1 : to[d]) * view.strides[d];
    differ = differ || from[d] != to[d];
  }
  return span;
}

// Copies those of the elements that lie in [begin, end) of the storage from `window` to their
// places.
template <std::size_t size>
void pick(const TorchTensor& view, std::int64_t first, std::int64_t count, std::int64_t begin,
          std::int64_t end, const std::byte* window, std::byte* out) {
  constexpr auto kSize = static_cast<std::int64_t>(size);
  const std::size_t inner = view.shape.size() - 1;
  const std::int64_t stride = view.strides[inner];
  auto place = place_of(view, first);
  std::int64_t row = view.offset;  // where the row of `place` begins
  for (std::size_t d = 0; d < inner; ++d) row += place[d] * view.strides[d];
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t from = place[inner];
    const std::int64_t to = std::min(from + count - done, view.shape[inner]);
    // Those of the row's elements [from, to) that the window has.
    std::int64_t low = row >= begin && row < end ? from : to, high = to;
    if (stride > 0) {
      low = std::max(from, ceil_div(std::max<std::int64_t>(begin - row, 0), stride));
      high = std::min(to, ceil_div(std::max<std::int64_t>(end - row, 0), stride));
    }
    for (std::int64_t i = low; i < high; ++i)
      std::memcpy(out + (done + i - from) * kSize, window + (row + i * stride - begin) * kSize,
                  size);
    done += to - from;
    place[inner] = 0;
    for (std::size_t d = inner; d-- > 0;) {  // the next row
      row += view.strides[d];
      if (++place[d] < view.shape[d]) break;
      row -= view.shape[d] * view.strides[d];
      place[d] = 0;
    }
  }
}

void pick(std::int64_t size, const TorchTensor& view, std::int64_t first, std::int64_t count,
          std::int64_t begin, std::int64_t end, const std::byte* window, std::byte* out) {
  switch (size) {
    case 1: return pick<1>(view, first, count, begin, end, window, out);
    case 2: return pick<2>(view, first, count, begin, end, window, out);
    case 4: return pick<4>(view, first, count, begin, end, window, out);
    default: return pick<8>(view, first, count, begin, end, window, out);
  }
}

}  // namespace

std::vector<std::int64_t> parse_torch_size(const Value& value, std::string_view what) {
  // torch.Size is a tuple; as an object it is torch.Size((2, 3)).
  if (value.is(Kind::object) && value.object().calls("torch", "Size") &&
      value.object().args.items().size() == 1)
    return parse_torch_size(value.object().args.items()[0], what);
  if (!value.is(Kind::tuple) && !value.is(Kind::list))
    refuse("has ", shown(value), " as ", what, "; expected a tuple of integers");
  std::vector<std::int64_t> counts;
  counts.reserve(value.items().size());
  for (const Value& item : value.items()) counts.push_back(count_of(item, what));
  return counts;
}

DType parse_torch_dtype(const Value& value) {
  const auto dtype = value.is(Kind::global) && value.global().module == "torch"
                         ? dtype_from_name(value.global().name)
                         : std::nullopt;
  if (!dtype) refuse<UnreadableTensor>("has dtype ", shown(value), kReadable);
  return *dtype;
}

std::int64_t TorchTensor::numel() const {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return count;
}

bool TorchTensor::is_contiguous() const {
  std::int64_t expected = 1;
  if (numel() == 0) return true;
  for (std::size_t d = shape.size(); d-- > 0;) {
    if (shape[d] != 1 && strides[d] != expected) return false;
    expected *= shape[d];
  }
  return true;
}

bool is_torch_tensor(const Value& value) {
  if (!value.is(Kind::object) || !value.object().callable.is(Kind::global)) return false;
  const pickle::GlobalName& name = value.object().callable.global();
  return (name.module == "torch._utils" || name.module == "torch._tensor") &&
         name.name.starts_with("_rebuild_");
}

TorchTensor parse_torch_tensor(const Value& value) {
  return parse_call(value.object().callable, value.object().args);
}

Value torch_tensor_value(DType dtype, const std::string& storage,
                         const std::vector<std::int64_t>& shape) {
  std::int64_t numel = 1;
  Items sizes, strides(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = Value(numel);
    numel *= std::max<std::int64_t>(shape[d], 1);  // as torch counts the strides of empty tensors
  }
  bool empty = false;
  for (const std::int64_t size : shape) {
    sizes.emplace_back(size);
    empty = empty || size == 0;
  }
  if (empty) numel = 0;
  Items args{Value(),
             Value(0),
             pickle::tuple(std::move(sizes)),
             pickle::tuple(std::move(strides)),
             Value(false),
             pickle::ordered_dict({})};
  std::string_view storage_class;
  for (const StorageClass& known : kStorageClasses)
    if (known.dtype == dtype) storage_class = known.name;
  const auto id = [&](Value type, std::int64_t count) {
    return pickle::persistent(
        pickle::tuple({"storage", std::move(type), storage, "cpu", Value(count)}));
  };
  if (!storage_class.empty()) {
    args[0] = id(pickle::global("torch", std::string(storage_class)), numel);
    return pickle::reduce(pickle::global("torch._utils", "_rebuild_tensor_v2"), std::move(args));
  }
  args[0] = id(pickle::global("torch.storage", "UntypedStorage"), numel * size_of(dtype));
  args.push_back(pickle::global("torch", std::string(untyped_name(dtype))));
  return pickle::reduce(pickle::global("torch._utils", "_rebuild_tensor_v3"), std::move(args));
}

// Note [Strided views]
// A transposed or expanded tensor is saved as its whole storage and strides. Elements in row-major
// order then lie apart; one read call per element would take minutes for a large weight. So a
// request is read as windows over the part of the storage that it touches, and its elements are
// picked from them. When that part is so large for so few elements that single reads are cheaper
// (one column of a large table), the request is halved first.

void TorchFile::read(const TensorInfo& tensor, std::int64_t first_element, std::int64_t count,
                     std::span<std::byte> out) const {
  const auto strided = strided_.find(tensor.name);
  if (strided == strided_.end()) return TensorSource::read(tensor, first_element, count, out);
  check_request(tensor, first_element, count, out);
  if (count > 0) gather(strided->second, first_element, count, out.data());
}

void TorchFile::gather(const Strided& strided, std::int64_t first, std::int64_t count,
                       std::byte* out) const {
  const TorchTensor& view = strided.view;
  const std::int64_t size = size_of(view.dtype);
  const Span span = span_of(view, first, count);
  const std::int64_t span_bytes = (span.last - span.first + 1) * size;
  if (count > 1 && span_bytes > kSmallSpanBytes && span_bytes / count > kSpanBytesPerElement) {
    gather(strided, first, count / 2, out);
    gather(strided, first + count / 2, count - count / 2, out + count / 2 * size);
    return;
  }
  std::vector<std::byte> window(static_cast<std::size_t>(std::min(span_bytes, kWindowBytes)));
  for (std::int64_t begin = span.first; begin <= span.last; begin += kWindowBytes / size) {
    const std::int64_t end = std::min(begin + kWindowBytes / size, span.last + 1);
    const auto bytes = std::span(window).first(static_cast<std::size_t>((end - begin) * size));
    read_range({zip_.file()->path(), strided.storage_offset + begin * size, (end - begin) * size},
               bytes);
    pick(size, view, first, count, begin, end, window.data(), out);
  }
}

}  // namespace floe

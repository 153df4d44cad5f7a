// Note [Strided views]
// A transposed or expanded tensor is saved as its whole storage and strides. Elements in row-major
// order then lie apart; one read call per element would take minutes for a large weight. So a request
// is read as windows over the part of the storage that it touches, and its elements are picked from
// them. When that part is so large for so few elements that single reads are cheaper (one column of a
// large table), the request is halved first.
#include <algorithm>
#include <cstring>

#include "floe/core/bytes.h"
#include "floe/io/torch_file.h"

namespace floe {
namespace {

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

// All storage between which the elements lie: exact where the places agree and in the first dimension
// in which they differ, whole below that.
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

// Copies those of the elements that lie in [begin, end) of the storage from `window` to their places.
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

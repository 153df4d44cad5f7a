// WebP through libwebp. The first frame as an animation player shows it: on a canvas that begins
// empty, which also places frames smaller than the canvas.
#include <webp/decode.h>
#include <webp/demux.h>

#include <memory>

#include "floe/image/formats.h"

namespace floe::image {
namespace {

constexpr std::string_view kFormat = "webp";

struct Deleter {
  void operator()(WebPAnimDecoder* decoder) const { WebPAnimDecoderDelete(decoder); }
  void operator()(WebPDemuxer* demuxer) const { WebPDemuxDelete(demuxer); }
};

}  // namespace

void decode_webp(Bytes file, Canvas canvas) {
  const WebPData data{reinterpret_cast<const std::uint8_t*>(file.data()), file.size()};
  // The size comes first: the decoder takes memory for the canvas when it is made.
  std::unique_ptr<WebPDemuxer, Deleter> demuxer(WebPDemux(&data));
  if (!demuxer) fail(kFormat, "broken or truncated");
  Image& out = canvas.set_size(kFormat, WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_WIDTH),
                               WebPDemuxGetI(demuxer.get(), WEBP_FF_CANVAS_HEIGHT));
  demuxer.reset();
  const std::unique_ptr<WebPAnimDecoder, Deleter> decoder(WebPAnimDecoderNew(&data, nullptr));
  if (!decoder) fail(kFormat, "broken or truncated");
  std::uint8_t* rgba = nullptr;
  int timestamp = 0;
  if (!WebPAnimDecoderGetNext(decoder.get(), &rgba, &timestamp))
    fail(kFormat, "broken or truncated");
  const std::size_t num_pixels = out.rgb.size() / 3;
  for (std::size_t i = 0; i < num_pixels; ++i)
    for (std::size_t c = 0; c < 3; ++c) out.rgb[3 * i + c] = rgba[4 * i + c];
}

}  // namespace floe::image

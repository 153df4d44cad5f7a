// What needs no reference: digests, equality of kernels, encoders, sizes, reasons of refusal.
#include "floe/image/image.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string_view>

#include "floe/core/error.h"
#include "floe/core/hash.h"
#include "floe/image/resample.h"
#include "floe/image/transform.h"

namespace floe::image::image_test {
namespace {

Image noise(int width, int height, unsigned seed = 0) {
  Image image{width, height, {}};
  image.rgb.resize(std::size_t{3} * static_cast<std::size_t>(width) *
                   static_cast<std::size_t>(height));
  std::mt19937 generator(seed);
  // Mostly extremes, so that results must be clipped.
  for (std::uint8_t& byte : image.rgb)
    byte = static_cast<std::uint8_t>(generator() % 3 ? (generator() & 1) * 255 : generator() & 255);
  return image;
}

std::string reason_of(std::span<const std::byte> file) {
  try {
    decode(file);
    return "";
  } catch (const DataError& error) {
    return error.what();
  }
}

std::string reason_of(std::string_view file) { return reason_of(std::as_bytes(std::span(file))); }

TEST(Sha256, KnownDigests) {
  const auto of = [](const std::string& text) {
    return sha256_hex(std::as_bytes(std::span(text)));
  };
  EXPECT_EQ(of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(of(std::string(1000000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesEqualTheWhole) {
  const Image image = noise(40, 7);
  const auto bytes = std::as_bytes(std::span(image.rgb));
  for (const std::size_t piece : {1, 55, 56, 63, 64, 65, 200}) {
    Sha256 sha, whole;
    whole.add(bytes);
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      sha.add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    EXPECT_EQ(sha.finish(), whole.finish()) << piece;
  }
}

TEST(Transform, EveryKernelGivesTheSameBytes) {
  std::mt19937 generator(1);
  const auto side = [&] {
    return 1 + static_cast<int>(generator() % (generator() % 4 ? 90 : 700));
  };
  for (int round = 0; round < 300; ++round) {
    const Image image = noise(side(), side(), generator());
    TransformOptions options;
    options.size = 1 + static_cast<int>(generator() % 64);
    const Transform plain(options, Isa::plain), best(options);
    std::vector<std::uint8_t> expected(plain.crop_bytes()), crop(plain.crop_bytes());
    plain.crop(image, expected.data());
    best.crop(image, crop.data());
    ASSERT_EQ(crop, expected) << image.width << " x " << image.height << " to " << options.size;
  }
}

TEST(Transform, LongPicturesCostOnlyTheirCrop) {
  // Resized, the first would have 224 x 44 million pixels.
  const Transform transform;
  std::vector<std::uint8_t> crop(transform.crop_bytes());
  for (const Image& image : {noise(1, 200000), noise(200000, 1)}) {
    transform.crop(image, crop.data());
    EXPECT_NE(std::ranges::count(crop, 0), static_cast<std::ptrdiff_t>(crop.size()));
  }
}

TEST(Transform, NormalisesInFloat32) {
  const Transform transform({.size = 1});
  const std::uint8_t crop[3]{0, 128, 255};
  float tensor[3];
  transform.normalise(crop, tensor, false);
  EXPECT_EQ(tensor[0], (0.0F / 255.0F - 0.48145466F) / 0.26862954F);
  EXPECT_EQ(tensor[1], (128.0F / 255.0F - 0.4578275F) / 0.26130258F);
  EXPECT_EQ(tensor[2], (255.0F / 255.0F - 0.40821073F) / 0.27577711F);
}

TEST(Transform, RefusesBadOptionsAndPictures) {
  EXPECT_THROW(Transform({.size = 0}), ConfigError);
  EXPECT_THROW(Transform({.std = {1, 0, 1}}), ConfigError);
  const Transform transform;
  std::vector<std::uint8_t> crop(transform.crop_bytes());
  EXPECT_THROW(transform.crop(Image{}, crop.data()), DataError);
  EXPECT_THROW(transform.crop(Image{2, 2, {1, 2, 3}}, crop.data()), DataError);
}

TEST(Encode, PngKeepsEveryByte) {
  for (const Image& image : {noise(1, 1), noise(37, 21), noise(300, 5)}) {
    const Image again = decode(encode_png(image));
    EXPECT_EQ(again.width, image.width);
    EXPECT_EQ(again.height, image.height);
    EXPECT_EQ(again.rgb, image.rgb);
  }
}

TEST(Encode, JpegIsDecodedAgain) {
  const Image again = decode(encode_jpeg(noise(37, 21)));
  EXPECT_EQ(again.width, 37);
  EXPECT_EQ(again.height, 21);
  EXPECT_THROW(encode_jpeg(Image{70000, 1, std::vector<std::uint8_t>(210000)}), Error);
  EXPECT_THROW(encode_jpeg(Image{}), Error);
}

TEST(Decode, UsesMemoryAgain) {
  Image out;
  decode(encode_png(noise(64, 64)), out);
  const std::uint8_t* memory = out.rgb.data();
  const Image small = noise(32, 48);
  decode(encode_png(small), out);
  EXPECT_EQ(out.rgb.data(), memory);
  EXPECT_EQ(out.rgb, small.rgb);
}

TEST(Decode, ReasonsAreShortAndStable) {
  EXPECT_EQ(reason_of(""), "image: empty file");
  EXPECT_EQ(reason_of("<html>"), "image: neither JPEG, PNG, WebP nor GIF");
  EXPECT_EQ(reason_of("\xff\xd8\xff"), "jpeg: truncated");
  EXPECT_EQ(reason_of("\x89PNG\r\n\x1a\n"), "png: broken or truncated before the pixels");
  EXPECT_EQ(reason_of("GIF89a"), "gif: truncated");
  EXPECT_EQ(reason_of("RIFF....WEBPVP8 "), "webp: broken or truncated");
  auto jpeg = encode_jpeg(noise(64, 64));
  jpeg.resize(jpeg.size() / 2);
  EXPECT_EQ(reason_of(jpeg), "jpeg: truncated");
  auto png = encode_png(noise(64, 64));
  png.resize(png.size() / 2);
  EXPECT_EQ(reason_of(png), "png: truncated");
}

TEST(Decode, RefusesBombsBeforeTakingMemory) {
  // A GIF's screen of 65535 x 65535.
  EXPECT_EQ(reason_of(std::string_view("GIF89a\xff\xff\xff\xff\0\0\0,\0\0\0\0\1\0\1\0\0\2", 24)),
            "gif: too many pixels");
  const auto png = encode_png(noise(20, 10));
  EXPECT_NO_THROW(decode(png, 200));
  EXPECT_THROW(decode(png, 199), DataError);
}

}  // namespace
}  // namespace floe::image::image_test

// For test_decode_reference.py: JPEG files that Pillow cannot write.
//   jpeg_maker IN.raw WIDTH HEIGHT OUT.jpg OPTION...
// IN.raw has WIDTH x HEIGHT pixels of one, three or four bytes. Options:
//   space=gray|rgb|ycc|cmyk|ycck   what the file holds
//   sample=2x2,1x1,1x1             sampling factors of the components
//   progressive  arithmetic  restart=N  no-markers (neither JFIF nor Adobe)  quality=N
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "floe/image/libjpeg.h"

namespace {

struct Space {
  int components;
  J_COLOR_SPACE in, file;
};

const std::map<std::string, Space> kSpaces{{"gray", {1, JCS_GRAYSCALE, JCS_GRAYSCALE}},
                                           {"rgb", {3, JCS_RGB, JCS_RGB}},
                                           {"ycc", {3, JCS_RGB, JCS_YCbCr}},
                                           {"cmyk", {4, JCS_CMYK, JCS_CMYK}},
                                           {"ycck", {4, JCS_CMYK, JCS_YCCK}}};

void set_sampling(jpeg_compress_struct& info, const std::string& factors) {
  for (int c = 0; c < info.num_components; ++c) {
    const std::size_t at = 4 * static_cast<std::size_t>(c);
    info.comp_info[c].h_samp_factor = factors.at(at) - '0';
    info.comp_info[c].v_samp_factor = factors.at(at + 2) - '0';
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  std::map<std::string, std::string> options{{"space", "ycc"}};
  for (int i = 5; i < argc; ++i) {
    const std::string word = argv[i];
    const std::size_t equals = word.find('=');
    options[word.substr(0, equals)] = equals == std::string::npos ? "" : word.substr(equals + 1);
  }
  const Space space = kSpaces.at(options.at("space"));
  std::ifstream in(argv[1], std::ios::binary);
  std::vector<unsigned char> pixels{std::istreambuf_iterator<char>(in), {}};

  jpeg_compress_struct info{};
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  std::FILE* out = std::fopen(argv[4], "wb");
  jpeg_stdio_dest(&info, out);
  info.image_width = static_cast<JDIMENSION>(std::stoi(argv[2]));
  info.image_height = static_cast<JDIMENSION>(std::stoi(argv[3]));
  info.input_components = space.components;
  info.in_color_space = space.in;
  jpeg_set_defaults(&info);
  jpeg_set_colorspace(&info, space.file);
  if (options.contains("quality")) jpeg_set_quality(&info, std::stoi(options["quality"]), TRUE);
  if (options.contains("sample")) set_sampling(info, options["sample"]);
  if (options.contains("restart"))
    info.restart_interval = static_cast<unsigned>(std::stoi(options["restart"]));
  if (options.contains("arithmetic")) info.arith_code = TRUE;
  if (options.contains("progressive")) jpeg_simple_progression(&info);
  if (options.contains("no-markers")) info.write_JFIF_header = info.write_Adobe_marker = FALSE;
  jpeg_start_compress(&info, TRUE);
  const std::size_t stride =
      std::size_t{info.image_width} * static_cast<unsigned>(space.components);
  if (pixels.size() != stride * info.image_height) return 2;
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = &pixels[stride * info.next_scanline];
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  std::fclose(out);
  jpeg_destroy_compress(&info);
  return 0;
}

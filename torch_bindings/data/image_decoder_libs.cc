#include <algorithm>
#include <array>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <jerror.h>
#include <jpeglib.h>
#include <png.h>
#include <string>
#include <string_view>

#include <ATen/ops/empty.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/data/image_decoder.h"

namespace horon::torch_detail {
namespace {

using core::concat;

[[noreturn]] void fail_image(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat(path, ": ", why));
}

void check_extent(int64_t rows, int64_t columns, const std::string& path) {
  if (rows >= 1 && columns >= 1 && rows <= kImagePixelsMax / columns) return;
  fail_image(path, concat("is an image of ", rows, " x ", columns, " pixels; the limit is ",
                          kImagePixelsMax, " pixels"));
}

// libjpeg leaves by longjmp(), which must not skip destructors: so calls that it can leave stand in
// functions without objects that have one.
struct Jpeg {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  std::jmp_buf back;
  char text[JMSG_LENGTH_MAX];
};

void leave(j_common_ptr info) {
  auto* jpeg = static_cast<Jpeg*>(info->client_data);
  info->err->format_message(info, jpeg->text);
  std::longjmp(jpeg->back, 1);
}

// A file that ends early is only a warning for libjpeg, which makes up the rest in grey.
void warn(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code == JWRN_JPEG_EOF) leave(info);
}

// Reads up to the pixels, for which nothing is allocated yet.
bool read_jpeg_header(Jpeg& jpeg, std::span<const unsigned char> bytes) {
  jpeg.info.err = jpeg_std_error(&jpeg.errors);
  jpeg.errors.error_exit = leave;
  jpeg.errors.emit_message = warn;
  jpeg.info.client_data = &jpeg;
  if (setjmp(jpeg.back) != 0) return false;
  jpeg_create_decompress(&jpeg.info);  // leaves client_data as it is
  jpeg_mem_src(&jpeg.info, bytes.data(), bytes.size());
  jpeg_read_header(&jpeg.info, TRUE);
  return true;
}

bool begin_jpeg(Jpeg& jpeg) {
  if (setjmp(jpeg.back) != 0) return false;
  // libjpeg converts grey and YCbCr to RGB, but not the four inks.
  const bool inks =
      jpeg.info.jpeg_color_space == JCS_CMYK || jpeg.info.jpeg_color_space == JCS_YCCK;
  jpeg.info.out_color_space = inks ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&jpeg.info);
  return true;
}

bool read_rows(Jpeg& jpeg, unsigned char* to) {
  if (setjmp(jpeg.back) != 0) return false;
  while (jpeg.info.output_scanline < jpeg.info.output_height) {
    JSAMPROW row = to + size_t{jpeg.info.output_scanline} * jpeg.info.output_width *
                            static_cast<size_t>(jpeg.info.output_components);
    jpeg_read_scanlines(&jpeg.info, &row, 1);
  }
  jpeg_finish_decompress(&jpeg.info);
  return true;
}

// Ends it on every way out.
struct EndJpeg {
  Jpeg& jpeg;
  ~EndJpeg() { jpeg_destroy_decompress(&jpeg.info); }
};

// Adobe's programs write the inks inverted, and nearly all such files are theirs.
at::Tensor rgb_of_inks(const at::Tensor& inks, bool inverted) {
  at::Tensor light = inks.to(at::kFloat).div_(255);
  if (!inverted) light.mul_(-1).add_(1);
  return light.narrow(2, 0, 3).mul(light.narrow(2, 3, 1)).mul_(255).round_().to(at::kByte);
}

// A PNG file without the chunks by which libpng's simple interface would change the values. The
// rest, right or wrong, is libpng's.
std::string without_color_space(std::span<const unsigned char> file) {
  constexpr size_t kSignature = 8, kFrame = 12;  // of a chunk: length, type and checksum
  constexpr std::array<std::string_view, 6> kDropped = {"gAMA", "cHRM", "sRGB",
                                                        "iCCP", "sBIT", "cICP"};
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  std::string kept(text.substr(0, kSignature));
  size_t at = kept.size();
  while (at + kFrame <= file.size()) {
    size_t length = 0;
    for (size_t i = 0; i < 4; ++i) length = length << 8 | file[at + i];
    if (length > file.size() - at - kFrame) break;
    const std::string_view chunk = text.substr(at, kFrame + length);
    const std::string_view type = chunk.substr(4, 4);
    if (type == "IDAT") break;  // these chunks come before the pixels
    if (std::ranges::find(kDropped, type) == kDropped.end()) kept += chunk;
    at += chunk.size();
  }
  return kept.append(text.substr(at));
}

}  // namespace

bool has_image_decoders() { return true; }

at::Tensor decode_jpeg(std::span<const unsigned char> bytes, const std::string& path) {
  Jpeg jpeg;
  std::memset(&jpeg, 0, sizeof jpeg);
  const EndJpeg end{jpeg};
  if (!read_jpeg_header(jpeg, bytes)) fail_image(path, jpeg.text);
  check_extent(jpeg.info.image_height, jpeg.info.image_width, path);
  if (!begin_jpeg(jpeg)) fail_image(path, jpeg.text);
  const at::Tensor pixels = at::empty(
      {jpeg.info.output_height, jpeg.info.output_width, jpeg.info.output_components}, at::kByte);
  if (!read_rows(jpeg, static_cast<unsigned char*>(pixels.mutable_data_ptr()))) {
    fail_image(path, jpeg.text);
  }
  const bool inks = jpeg.info.out_color_space == JCS_CMYK;
  return inks ? rgb_of_inks(pixels, jpeg.info.saw_Adobe_marker != 0) : pixels;
}

at::Tensor decode_png(std::span<const unsigned char> file, const std::string& path) {
  const std::string bytes = without_color_space(file);
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&image, bytes.data(), bytes.size()) == 0) {
    fail_image(path, image.message);
  }
  const struct EndPng {
    png_image& image;
    ~EndPng() { png_image_free(&image); }
  } end{image};
  check_extent(image.height, image.width, path);
  image.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;  // as 8 bits; else 16 bits would be taken for linear
  image.format = PNG_FORMAT_RGBA;            // libpng would mix a background into RGB
  const at::Tensor pixels = at::empty({image.height, image.width, 4}, at::kByte);
  if (png_image_finish_read(&image, nullptr, pixels.mutable_data_ptr(), 0, nullptr) == 0) {
    fail_image(path, image.message);
  }
  return pixels.narrow(2, 0, 3);
}

}  // namespace horon::torch_detail

#include "horon/torch_bindings/data/image_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/data/image_decoder.h"

namespace horon {
namespace {

constexpr std::array<unsigned char, 3> kJpeg = {0xff, 0xd8, 0xff};
constexpr std::array<unsigned char, 8> kPng = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

template <size_t N>
bool begins_with(const std::vector<unsigned char>& bytes,
                 const std::array<unsigned char, N>& sign) {
  return bytes.size() >= N && std::equal(sign.begin(), sign.end(), bytes.begin());
}

std::vector<unsigned char> read_bytes(const std::string& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  if (error || !file) throw Error(ErrorCode::InvalidArgument, path + ": can't be opened");
  std::vector<unsigned char> bytes(size);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size));
  if (static_cast<size_t>(file.gcount()) != size) {
    throw Error(ErrorCode::InvalidArgument, path + ": can't be read");
  }
  return bytes;
}

}  // namespace

bool can_decode_images() { return torch_detail::has_image_decoders(); }

at::Tensor read_image(const std::string& path) {
  if (!can_decode_images()) {
    throw Error(ErrorCode::Config,
                core::concat(path,
                             ": this Horon was built without libjpeg and libpng, which decode "
                             "images; install libjpeg-dev and libpng-dev and configure it "
                             "with -DHORON_IMAGES=ON"));
  }
  const std::vector<unsigned char> bytes = read_bytes(path);
  at::Tensor image;
  if (begins_with(bytes, kJpeg)) {
    image = torch_detail::decode_jpeg(bytes, path);
  } else if (begins_with(bytes, kPng)) {
    image = torch_detail::decode_png(bytes, path);
  } else {
    throw Error(ErrorCode::InvalidArgument, path + ": is neither a JPEG nor a PNG image");
  }
  return image.permute({2, 0, 1}).contiguous();
}

}  // namespace horon

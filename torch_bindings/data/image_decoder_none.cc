#include "horon/core/base/error.h"
#include "horon/torch_bindings/data/image_decoder.h"

namespace horon::torch_detail {

bool has_image_decoders() { return false; }

at::Tensor decode_jpeg(std::span<const unsigned char> /*bytes*/, const std::string& path) {
  throw Error(ErrorCode::Config, path + ": this Horon was built without libjpeg");
}

at::Tensor decode_png(std::span<const unsigned char> /*bytes*/, const std::string& path) {
  throw Error(ErrorCode::Config, path + ": this Horon was built without libpng");
}

}  // namespace horon::torch_detail

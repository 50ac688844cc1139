// How read_image() and the decoders share their work; CMake picks one of image_decoder_*.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

inline constexpr int64_t kImagePixelsMax = int64_t{1} << 28;

// Whether they are compiled in.
bool has_image_decoders();
// uint8 [rows, columns, 3]. Throws Error(InvalidArgument) that begins with `path`.
at::Tensor decode_jpeg(std::span<const unsigned char> bytes, const std::string& path);
at::Tensor decode_png(std::span<const unsigned char> bytes, const std::string& path);

}  // namespace horon::torch_detail

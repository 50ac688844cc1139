// Decodes JPEG and PNG images, by libjpeg and libpng if Horon was built with them
// (-DHORON_IMAGES=ON, or AUTO where both are found).
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

namespace horon {

// Whether this build can decode images.
bool can_decode_images();

// A JPEG or PNG file, told apart by its content, as uint8 [3, rows, columns]: red, green, blue.
// Grey images become three equal channels; transparency is left out; 16 bits become 8. The values
// are those of the file, whatever it says of their colour space, as in torchvision. Any thread.
// Throws Error(InvalidArgument) naming the file: not there, neither of the two, broken, cut off, of
// more than 2^28 pixels; and Error(Config) in a build without the libraries.
at::Tensor read_image(const std::string& path);

}  // namespace horon

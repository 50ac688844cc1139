// Images for the examples: Fashion-MNIST's, or drawn ones where its files are not there.
#pragma once

#include <cstddef>
#include <string>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

namespace example {

struct Images {
  std::string origin;      // for people
  at::Tensor train;        // uint8 [n, height, width]
  at::Tensor test;         // uint8 [m, height, width]
  at::Tensor test_labels;  // int64 [m]
};

// `data`: a folder with IDX files in MNIST's naming; "shapes" for 5,000 drawn discs, rings,
// squares, ... that are the same everywhere; empty for Fashion-MNIST where Debian has installed it
// on rank 0's host, else the shapes. Collective; throws on all ranks, also if there are no images.
Images load_images(const std::string& data);
inline constexpr const char* kImagesHelp =
    "folder with IDX files in MNIST's naming, or \"shapes\" for drawn images "
    "(default: "
    "Fashion-MNIST where it is installed, else shapes)";

// These throw Error(InvalidArgument) that names where the images come from: if there are none, and
// if they are not of 28 x 28 pixels as the model needs them.
void require_some(const at::Tensor& images, const std::string& origin);
void require_28_by_28(const at::Tensor& images, const std::string& origin);

// Some of the images as float32 [n, 1, height, width] in [-1, 1].
at::Tensor batch_of(const at::Tensor& images, c10::ArrayRef<size_t> indices);

}  // namespace example

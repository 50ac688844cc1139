#include "images.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <random>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/index_select.h>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/data/idx_dataset.h"

namespace example {
namespace {

constexpr const char* kInstalled = "/usr/share/datasets/fashion-mnist";
constexpr int kSide = 28;
constexpr int kShapes = 6;

// Is the point within the shape? Its size is 1: a disc reaches from -1 to 1.
bool inside(int shape, double x, double y) {
  const double radius = std::hypot(x, y);
  const double square = std::max(std::abs(x), std::abs(y));
  switch (shape) {
    case 0:
      return radius < 1;  // a disc
    case 1:
      return radius < 1 && radius > 0.6;  // a ring
    case 2:
      return square < 0.9;  // a square
    case 3:
      return square < 0.9 && square > 0.55;  // a frame
    case 4:
      return square < 1 && std::min(std::abs(x), std::abs(y)) < 0.25;  // a cross
    default:
      return y < 0.8 && y > 2 * std::abs(x) - 1;  // a triangle
  }
}

// Each image has a shape of its own place, size and brightness.
void draw_shapes(at::Tensor& images, at::Tensor& labels, uint32_t seed) {
  std::mt19937 random(seed);
  const auto between = [&](double low, double high) {
    return low + (high - low) * (static_cast<double>(random()) / 4294967296.0);
  };
  auto* pixel = images.data_ptr<uint8_t>();
  auto* label = labels.data_ptr<int64_t>();
  for (int64_t i = 0; i < images.size(0); ++i) {
    const int shape = static_cast<int>(i % kShapes);
    label[i] = shape;
    const double size = between(6, 11), bright = between(140, 255);
    const double left = between(size, kSide - size), top = between(size, kSide - size);
    for (int row = 0; row < kSide; ++row) {
      for (int column = 0; column < kSide; ++column) {
        const bool lit = inside(shape, (column + 0.5 - left) / size, (row + 0.5 - top) / size);
        *pixel++ = lit ? static_cast<uint8_t>(bright) : 0;
      }
    }
  }
}

Images shapes() {
  Images images{"drawn shapes", at::empty({4000, kSide, kSide}, at::kByte),
                at::empty({1000, kSide, kSide}, at::kByte), at::empty({1000}, at::kLong)};
  at::Tensor train_labels = at::empty({4000}, at::kLong);
  draw_shapes(images.train, train_labels, 1);
  draw_shapes(images.test, images.test_labels, 2);
  return images;
}

}  // namespace

Images load_images(const std::string& data) {
  std::string folder = data;
  if (data.empty()) {
    const bool installed = std::filesystem::is_directory(kInstalled);
    folder = horon::broadcast_object(installed) ? kInstalled : "shapes";
  }
  return horon::on_all_ranks([&] {
    if (folder == "shapes") return shapes();
    using Split = horon::IdxDataset::Split;
    const horon::IdxDataset train(folder, Split::Train), test(folder, Split::Test);
    for (const auto* part : {&train, &test}) require_some(part->images(), folder);
    return Images{folder, train.images(), test.images(), test.targets()};
  });
}

void require_some(const at::Tensor& images, const std::string& origin) {
  if (images.size(0) > 0) return;
  throw horon::Error(horon::ErrorCode::InvalidArgument,
                     origin + ": a file holds no images; training and test need some each");
}

void require_28_by_28(const at::Tensor& images, const std::string& origin) {
  if (images.size(1) == kSide && images.size(2) == kSide) return;
  throw horon::Error(horon::ErrorCode::InvalidArgument,
                     origin + ": has images of " + std::to_string(images.size(1)) + " x " +
                         std::to_string(images.size(2)) + " pixels, but this model needs 28 x 28");
}

at::Tensor batch_of(const at::Tensor& images, c10::ArrayRef<size_t> indices) {
  std::vector<int64_t> rows(indices.begin(), indices.end());
  const at::Tensor which = at::from_blob(rows.data(), static_cast<int64_t>(rows.size()), at::kLong);
  return images.index_select(0, which).to(at::kFloat).div_(127.5).sub_(1).unsqueeze_(1);
}

}  // namespace example

#include "horon/torch_bindings/data/image_folder.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/data/image_file.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {
namespace {

namespace fs = std::filesystem;
using core::concat;

[[noreturn]] void fail_folder(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat(path, ": ", why));
}

bool is_image(const fs::path& path) {
  std::string ending = path.extension().string();
  for (char& letter : ending) letter = static_cast<char>(std::tolower(static_cast<int>(letter)));
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

std::vector<std::string> subfolders(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  }
  if (names.empty()) fail_folder(folder, "has no subfolder; put the images of each class into one");
  std::sort(names.begin(), names.end());
  return names;
}

// Follows links to folders, but not those that lead back: `around` are the canonical paths of the
// folders that we are in.
void add_images(const fs::path& folder, std::vector<fs::path>& around,
                std::vector<std::string>& paths) {
  const fs::path itself = fs::canonical(folder);
  if (std::find(around.begin(), around.end(), itself) != around.end()) return;
  around.push_back(itself);
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) {
      add_images(entry.path(), around, paths);
    } else if (entry.is_regular_file() && is_image(entry.path())) {
      paths.push_back(entry.path().string());
    }
  }
  around.pop_back();
}

std::vector<std::string> images_below(const fs::path& folder) {
  std::vector<std::string> paths;
  std::vector<fs::path> around;
  add_images(folder, around, paths);
  if (paths.empty()) fail_folder(folder.string(), "has no image (.jpg, .jpeg, .png)");
  std::sort(paths.begin(), paths.end());
  return paths;
}

at::Tensor column(const std::array<double, 3>& numbers) {
  return at::tensor(at::ArrayRef<double>(numbers)).to(at::kFloat).view({3, 1, 1});
}

// uint8 [3, rows, columns] to float32 [3, size, size]. The longer side is rounded down, and a place
// between two pixels to the even one, as torchvision's Resize and CenterCrop do.
at::Tensor resized_middle(const at::Tensor& image, int64_t resize, int64_t size) {
  const int64_t rows = image.size(1);
  const int64_t columns = image.size(2);
  const auto scaled = [&](int64_t extent) { return resize * extent / std::min(rows, columns); };
  const auto begin = [&](int64_t extent) {
    return static_cast<int64_t>(std::nearbyint(static_cast<double>(extent - size) / 2));
  };
  at::Tensor pixels = image.to(at::kFloat).unsqueeze(0);
  pixels = at::_upsample_bilinear2d_aa(pixels, {scaled(rows), scaled(columns)}, false, std::nullopt,
                                       std::nullopt);
  return pixels[0].narrow(1, begin(pixels.size(2)), size).narrow(2, begin(pixels.size(3)), size);
}

}  // namespace

ImageFolder::ImageFolder(const std::string& folder, const Options& options) : options_(options) {
  if (!can_decode_images()) (void)read_image(folder);  // says what is missing
  if (options.size < 1 || options.resize < options.size) {
    fail_folder(folder, concat("size is ", options.size, " and resize is ", options.resize,
                               "; give a size from 1 to resize"));
  }
  std::array<double, 3> factor{};
  std::array<double, 3> offset{};
  for (size_t c = 0; c < 3; ++c) {
    if (options.deviation[c] == 0) fail_folder(folder, "deviation is 0; give numbers above 0");
    factor[c] = 1 / (255 * options.deviation[c]);
    offset[c] = -options.mean[c] / options.deviation[c];
  }
  factor_ = column(factor);
  offset_ = column(offset);
  try {
    list(folder);
  } catch (const fs::filesystem_error& error) {
    fail_folder(error.path1().string(), concat("can't be listed: ", error.code().message()));
  }
}

void ImageFolder::list(const std::string& folder) {
  auto classes = std::make_shared<std::vector<std::string>>(subfolders(folder));
  auto files = std::make_shared<std::vector<File>>();
  for (size_t c = 0; c < classes->size(); ++c) {
    for (std::string& path : images_below(fs::path(folder) / (*classes)[c])) {
      files->push_back({std::move(path), static_cast<int64_t>(c)});
    }
  }
  classes_ = std::move(classes);
  files_ = std::move(files);
}

at::Tensor ImageFolder::load(size_t index) const {
  const at::Tensor image = read_image(path(index));
  at::Tensor pixels = options_.transform ? options_.transform(image, index).to(at::kFloat)
                                         : resized_middle(image, options_.resize, options_.size);
  return pixels.mul(factor_).add_(offset_);
}

torch::data::Example<> ImageFolder::get_batch(c10::ArrayRef<size_t> indices) {
  const torch_detail::PlainMode plain;
  std::vector<at::Tensor> images;
  at::Tensor targets = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  for (size_t i = 0; i < indices.size(); ++i) {
    images.push_back(load(indices[i]));
    if (images[i].sizes() != images[0].sizes()) {
      fail_folder(path(indices[i]),
                  concat("the transform made it ", core::shape_text(images[i].sizes()), ", but ",
                         path(indices[0]), " ", core::shape_text(images[0].sizes()),
                         "; give all images of a batch one shape"));
    }
    targets.mutable_data_ptr<int64_t>()[i] = target(indices[i]);
  }
  return {at::stack(images), targets};
}

}  // namespace horon

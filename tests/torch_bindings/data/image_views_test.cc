// Which part of an image a batch shows: the default view, and random crops. Needs no session.
#include <filesystem>
#include <png.h>
#include <random>
#include <string>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "horon/torch_bindings/data/image_folder.h"
#include "horon/torch_bindings/data/prefetch_loader.h"
#include "horon/torch_bindings/data/samplers.h"

namespace horon::image_views_test {
namespace {

namespace fs = std::filesystem;

class ImageViews : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("horon_image_views_" + std::to_string(getpid()));
    fs::create_directories(folder_ / "class");
  }
  void TearDown() override { fs::remove_all(folder_); }
  // Image number `index`; uint8 [3, rows, columns].
  void write(size_t index, const at::Tensor& image) const {
    const at::Tensor pixels = image.permute({1, 2, 0}).contiguous();
    png_image file{};
    file.version = PNG_IMAGE_VERSION;
    file.height = static_cast<png_uint_32>(pixels.size(0));
    file.width = static_cast<png_uint_32>(pixels.size(1));
    file.format = PNG_FORMAT_RGB;
    const fs::path path = folder_ / "class" / (std::to_string(index) + ".png");
    ASSERT_TRUE(
        png_image_write_to_file(&file, path.c_str(), 0, pixels.const_data_ptr(), 0, nullptr));
  }
  fs::path folder_;
};

// Each pixel is unlike its neighbours.
at::Tensor pattern(int64_t rows, int64_t columns) {
  const at::Tensor row = at::arange(rows).view({1, rows, 1});
  const at::Tensor column = at::arange(columns).view({1, 1, columns});
  const at::Tensor color = at::arange(3).view({3, 1, 1});
  return (row * 7 + column * 5 + row * column / 16 + color * 60).remainder(256).to(at::kByte);
}

// The long side is int(256 * long / short), and a middle between two pixels the even one.
TEST_F(ImageViews, TheDefaultViewIsTorchvisions) {
  struct Case {
    int64_t rows, columns, scaled_rows, scaled_columns, top, left;
  };
  for (const Case& each : {Case{427, 640, 256, 383, 16, 80}, Case{640, 427, 383, 256, 80, 16},
                           Case{430, 640, 256, 381, 16, 78}, Case{256, 300, 256, 300, 16, 38}}) {
    SCOPED_TRACE(testing::Message() << each.rows << " x " << each.columns);
    const at::Tensor image = pattern(each.rows, each.columns);
    write(0, image);
    ImageFolder images(folder_, {.mean = {}, .deviation = {1, 1, 1}});
    const at::Tensor view = images.get_batch(std::vector<size_t>{0}).data[0];
    const at::Tensor scaled = at::_upsample_bilinear2d_aa(
        image.to(at::kFloat).unsqueeze(0), {each.scaled_rows, each.scaled_columns}, false)[0];
    const at::Tensor expected = scaled.narrow(1, each.top, 224).narrow(2, each.left, 224) / 255;
    EXPECT_TRUE(at::allclose(view, expected, 1e-4, 1e-4));
  }
}

TEST_F(ImageViews, CropsThatAreSeededByNumberAndEpochDifferFromEpochToEpoch) {
  constexpr int64_t kCrop = 16;
  for (const size_t index : {0, 1, 2, 3}) write(index, pattern(64, 64));
  const DistributedRandomSampler sampler(4, {.num_replicas = 1, .rank = 0, .shuffle = false});
  const auto crop = [sampler](const at::Tensor& image, size_t index) {
    std::seed_seq seeds{sampler.epoch(), index};
    std::mt19937 random(seeds);
    std::uniform_int_distribution<int64_t> row(0, image.size(1) - kCrop);
    std::uniform_int_distribution<int64_t> column(0, image.size(2) - kCrop);
    const at::Tensor rows = image.narrow(1, row(random), kCrop);
    return rows.narrow(2, column(random), kCrop);
  };
  PrefetchLoader loader(ImageFolder(folder_, {.transform = crop}), sampler,
                        {.threads = 2, .ahead = 4});
  const auto crops_of = [&](size_t epoch) {
    loader.sampler().set_epoch(epoch);
    std::vector<at::Tensor> crops;
    for (const auto& batch : loader) crops.push_back(batch.data);
    return at::cat(crops);
  };
  const at::Tensor first = crops_of(0), second = crops_of(1);
  ASSERT_EQ(first.size(0), 4);
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_FALSE(at::equal(first[i], second[i])) << i;
    EXPECT_FALSE(at::equal(first[i], first[(i + 1) % 4])) << i;
  }
  EXPECT_TRUE(at::equal(crops_of(0), first));
  EXPECT_TRUE(at::equal(crops_of(1), second));
}

}  // namespace
}  // namespace horon::image_views_test

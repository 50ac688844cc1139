// The prefetching loader, CIFAR files, and folders of images. Needs no session.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <jpeglib.h>
#include <png.h>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/torch_bindings/data/sampler_support.h"
#include "horon/torch_bindings/data/cifar_dataset.h"
#include "horon/torch_bindings/data/image_file.h"
#include "horon/torch_bindings/data/image_folder.h"
#include "horon/torch_bindings/data/prefetch_loader.h"
#include "horon/torch_bindings/data/stream_sampler.h"

namespace horon::datasets_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::saved;

// Each sample is its own number; one may be broken.
struct Numbers {
  std::vector<size_t> get_batch(c10::ArrayRef<size_t> indices) const {
    for (const size_t i : indices) {
      if (i == broken) throw std::out_of_range("broken sample");
    }
    return indices.vec();
  }
  size_t broken = ~size_t{0};
};

TEST(PrefetchLoader, HandsOutTheEpochsInOrder) {
  const SamplerOptions options{.num_replicas = 2, .rank = 1, .seed = 4};
  DistributedRandomSampler oracle(101, options);
  PrefetchLoader loader(Numbers{}, DistributedRandomSampler(101, options),
                        {.batch_size = 7, .threads = 3, .ahead = 4});
  for (int epoch = 0; epoch < 3; ++epoch) {
    std::vector<size_t> got;
    for (const auto& batch : loader) got.insert(got.end(), batch.begin(), batch.end());
    oracle.reset();
    EXPECT_EQ(got, testing_support::drain(oracle));
  }
  EXPECT_GE(loader.wait_seconds(), 0);
}

// The loop is left in mid-epoch, with batches read ahead. What is saved is what the program has
// seen.
TEST(PrefetchLoader, GoesOnBehindTheLastBatchThatWasHandedOut) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0};
  const PrefetchOptions ahead{.batch_size = 5, .threads = 2, .ahead = 6};
  for (const size_t stop : {0, 1, 4, 9, 10}) {
    PrefetchLoader first(Numbers{}, DistributedRandomSampler(50, options), ahead);
    std::vector<size_t> got;
    first.start();
    for (size_t i = 0; i < stop; ++i) {
      const auto batch = *first.next();
      got.insert(got.end(), batch.begin(), batch.end());
    }
    torch::serialize::InputArchive place = saved(first);
    PrefetchLoader second(Numbers{}, DistributedRandomSampler(50, options), ahead);
    second.load(place);
    // A job that is asked to stop at once saves what it has loaded.
    DistributedRandomSampler sampler(50, options);
    testing_support::hand_over(second, sampler);
    place = saved(PrefetchLoader(Numbers{}, sampler, ahead));
    PrefetchLoader third(Numbers{}, DistributedRandomSampler(50, options), ahead);
    third.load(place);
    for (const auto& batch : third) got.insert(got.end(), batch.begin(), batch.end());
    DistributedRandomSampler oracle(50, options);
    EXPECT_EQ(got, testing_support::drain(oracle)) << stop;
  }
}

TEST(PrefetchLoader, TwoRanksGoOnAsThree) {
  const PrefetchOptions ahead{.batch_size = 4, .threads = 1, .ahead = 3};
  std::vector<size_t> got;
  const auto take = [&](const std::vector<size_t>& batch) {
    got.insert(got.end(), batch.begin(), batch.end());
  };
  std::vector<torch::serialize::InputArchive> places[3];
  for (size_t r = 0; r < 2; ++r) {
    PrefetchLoader loader(
        Numbers{}, DistributedRandomSampler(60, {.num_replicas = 2, .rank = r, .seed = 6}), ahead);
    loader.start();
    for (int i = 0; i < 3; ++i) take(*loader.next());
    for (auto& of_rank : places) of_rank.push_back(saved(loader));
  }
  for (size_t r = 0; r < 3; ++r) {
    PrefetchLoader loader(Numbers{}, DistributedRandomSampler(60, {.num_replicas = 3, .rank = r}),
                          ahead);
    loader.load_resharded(places[r]);
    for (const auto& batch : loader) take(batch);
  }
  std::sort(got.begin(), got.end());
  ASSERT_EQ(got.size(), 60u);
  for (size_t i = 0; i < 60; ++i) EXPECT_EQ(got[i], i);
}

TEST(PrefetchLoader, ErrorsOfTheDatasetArriveInTheLoop) {
  const SamplerOptions options{.num_replicas = 1, .rank = 0, .shuffle = false};
  PrefetchLoader loader(Numbers{.broken = 23}, DistributedRandomSampler(50, options),
                        {.batch_size = 5, .threads = 2, .ahead = 3});
  size_t batches = 0;
  EXPECT_THROW(
      {
        for (const auto& batch : loader) batches += batch.empty() ? 0 : 1;
      },
      std::out_of_range);
  EXPECT_EQ(batches, 4u) << "those before the broken one";
  batches = 0;
  for (const auto& batch : loader) {  // the loop may be begun anew, and left
    if (++batches == 2) break;
    EXPECT_EQ(batch.size(), 5u);
  }
  EXPECT_THAT(error_of([&] {
                PrefetchLoader(Numbers{}, DistributedRandomSampler(50, options), {.ahead = 0});
              }),
              HasSubstr("must be at least 1"));
}

TEST(PrefetchLoader, ReadsStreams) {
  struct Stream {
    static size_t get_batch(const StreamBatch& batch) { return batch.first; }
  };
  PrefetchLoader loader(Stream{},
                        DistributedStreamSampler({.num_replicas = 2, .rank = 1, .records = 24}),
                        {.batch_size = 4});
  std::vector<size_t> firsts;
  for (const size_t first : loader) firsts.push_back(first);
  EXPECT_EQ(firsts, (std::vector<size_t>{1, 9, 17}));
}

class Files : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("horon_datasets_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const fs::path& name, const std::string& bytes) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
  }
  std::string read(const fs::path& name) const {
    std::ifstream file(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  fs::path folder_;
};

std::string cifar_record(std::vector<int> labels, int pixel) {
  std::string record(labels.begin(), labels.end());
  for (int i = 0; i < 3072; ++i) record += static_cast<char>((pixel + i / 1024 * 10) % 256);
  return record;
}

TEST_F(Files, Cifar10) {
  using Cifar = CifarDataset;
  for (int file = 1; file <= 5; ++file) {
    write("cifar-10-batches-bin/data_batch_" + std::to_string(file) + ".bin",
          cifar_record({file}, file) + cifar_record({9}, 100 + file));
  }
  Cifar train(folder_, Cifar::Kind::Cifar10, Cifar::Split::Train,
              {.mean = {0, 0.5, 0}, .deviation = {1, 2, 1}});
  EXPECT_EQ(train.size(), 10u);
  const auto batch = train.get_batch(std::vector<size_t>{3, 0});
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{2, 3, 32, 32}));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({9, 1}, at::kLong)));
  EXPECT_NEAR(batch.data[0][0][5][5].item<float>(), 102 / 255.0, 1e-6);
  EXPECT_NEAR(batch.data[0][1][5][5].item<float>(), (112 / 255.0 - 0.5) / 2, 1e-6);
  EXPECT_THAT(error_of([&] { Cifar(folder_, Cifar::Kind::Cifar10, Cifar::Split::Test); }),
              AllOf(HasSubstr("has no test_batch.bin"), HasSubstr("cifar-10-binary.tar.gz")));
  write("test_batch.bin", cifar_record({1}, 3).substr(1));
  EXPECT_THAT(error_of([&] { Cifar(folder_, Cifar::Kind::Cifar10, Cifar::Split::Test); }),
              AllOf(HasSubstr("test_batch.bin"), HasSubstr("not whole records of 3073")));
  write("test_batch.bin", cifar_record({10}, 3));
  EXPECT_THAT(error_of([&] { Cifar(folder_, Cifar::Kind::Cifar10, Cifar::Split::Test); }),
              HasSubstr("has the label 10, but there are 10 classes"));
}

TEST_F(Files, Cifar100) {
  using Cifar = CifarDataset;
  write("test.bin", cifar_record({19, 99}, 1) + cifar_record({3, 42}, 2));
  Cifar fine(folder_, Cifar::Kind::Cifar100, Cifar::Split::Test);
  EXPECT_TRUE(at::equal(fine.targets(), at::tensor({99, 42}, at::kLong)));
  EXPECT_EQ(fine.images()[1][0][0][0].item<int>(), 2);
  Cifar coarse(folder_, Cifar::Kind::Cifar100, Cifar::Split::Test, {.coarse = true});
  EXPECT_TRUE(at::equal(coarse.targets(), at::tensor({19, 3}, at::kLong)));
}

// By the libraries' own writers. `pixels`: [rows, columns, channels].
std::string png(const at::Tensor& pixels, uint32_t format) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(pixels.size(0));
  image.width = static_cast<png_uint_32>(pixels.size(1));
  image.format = format;
  std::string bytes(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = bytes.size();
  EXPECT_TRUE(png_image_write_to_memory(&image, bytes.data(), &size, 0, pixels.const_data_ptr(), 0,
                                        nullptr));
  bytes.resize(size);
  return bytes;
}

// One row of grey pixels, of 8 or 16 bits; `gamma`: what the file says of them, 0: nothing.
std::string grey_png(const std::string& row, int bits, double gamma) {
  std::string bytes;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  const auto append = [](png_structp into, png_bytep data, png_size_t size) {
    static_cast<std::string*>(png_get_io_ptr(into))->append(reinterpret_cast<char*>(data), size);
  };
  png_set_write_fn(png, &bytes, append, nullptr);
  png_set_IHDR(png, info, static_cast<png_uint_32>(row.size() * 8 / static_cast<size_t>(bits)), 1,
               bits, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE, PNG_COMPRESSION_TYPE_DEFAULT,
               PNG_FILTER_TYPE_DEFAULT);
  if (gamma > 0) png_set_gAMA(png, info, gamma);
  png_write_info(png, info);
  png_write_row(png, reinterpret_cast<png_const_bytep>(row.data()));
  png_write_end(png, nullptr);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

std::string jpeg(const at::Tensor& pixels, J_COLOR_SPACE space) {
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT: libjpeg's type
  jpeg_mem_dest(&info, &bytes, &size);
  info.image_height = static_cast<JDIMENSION>(pixels.size(0));
  info.image_width = static_cast<JDIMENSION>(pixels.size(1));
  info.input_components = static_cast<int>(pixels.size(2));
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  jpeg_start_compress(&info, TRUE);
  const at::Tensor copy = pixels.contiguous();
  for (int64_t row = 0; row < pixels.size(0); ++row) {
    auto* line = static_cast<unsigned char*>(copy[row].mutable_data_ptr());
    jpeg_write_scanlines(&info, &line, 1);
  }
  jpeg_finish_compress(&info);
  std::string written(reinterpret_cast<char*>(bytes), size);
  jpeg_destroy_compress(&info);
  std::free(bytes);
  return written;
}

// A ramp, which JPEG keeps nearly as it is.
at::Tensor ramp(int64_t rows, int64_t columns, int64_t channels) {
  const at::Tensor line = at::linspace(10, 240, columns).view({1, columns, 1});
  return line.add(at::arange(channels).view({1, 1, channels}) * 4)
      .expand({rows, columns, channels})
      .to(at::kByte)
      .contiguous();
}

class Images : public Files {
 protected:
  void SetUp() override {
    Files::SetUp();
    if (!can_decode_images()) GTEST_SKIP() << "built without libjpeg and libpng";
  }
  std::string failure(const char* name) const {
    return error_of([&] { read_image(folder_ / name); });
  }
};

TEST_F(Images, AreDecoded) {
  const at::Tensor colors = ramp(20, 30, 3);
  const at::Tensor want = colors.permute({2, 0, 1});
  write("a.png", png(colors, PNG_FORMAT_RGB));
  EXPECT_TRUE(at::equal(read_image(folder_ / "a.png"), want));
  // The pixels below a transparent place stay.
  const at::Tensor see_through = at::cat({colors, at::zeros({20, 30, 1}, at::kByte)}, 2);
  write("b.png", png(see_through, PNG_FORMAT_RGBA));
  EXPECT_TRUE(at::equal(read_image(folder_ / "b.png"), want));
  const at::Tensor grey = ramp(20, 30, 1);
  write("c.png", png(grey, PNG_FORMAT_GRAY));
  EXPECT_TRUE(
      at::equal(read_image(folder_ / "c.png"), grey.permute({2, 0, 1}).expand({3, 20, 30})));
  const auto near = [&](const char* name, const at::Tensor& expected) {
    const at::Tensor got = read_image(folder_ / name);
    return got.sizes() == expected.sizes() &&
           got.to(at::kFloat).sub(expected.to(at::kFloat)).abs().max().item<float>() < 8;
  };
  write("a.jpg", jpeg(colors, JCS_RGB));
  EXPECT_TRUE(near("a.jpg", want));
  write("b.jpg", jpeg(grey, JCS_GRAYSCALE));
  EXPECT_TRUE(near("b.jpg", grey.permute({2, 0, 1}).expand({3, 20, 30})));
  // Four inks, inverted as Adobe's programs write them: colour times black.
  const at::Tensor inks = at::cat({colors, at::full({20, 30, 1}, 255, at::kByte)}, 2);
  write("c.jpg", jpeg(inks, JCS_CMYK));
  EXPECT_TRUE(near("c.jpg", want));
}

TEST_F(Images, KeepTheValuesOfTheFile) {
  const std::string row = "\x10\x40\x80\xc0\xff";
  std::string row_of_16;  // of 16 bits, with the same upper 8
  for (const char value : row) row_of_16 += {value, value};
  for (const double gamma : {0.0, 1.0, 1 / 1.8, 1 / 2.2}) {
    for (const int bits : {8, 16}) {
      write("grey.png", grey_png(bits == 8 ? row : row_of_16, bits, gamma));
      const at::Tensor got = read_image(folder_ / "grey.png")[0][0];
      EXPECT_TRUE(at::equal(got, at::tensor({0x10, 0x40, 0x80, 0xc0, 0xff}, at::kByte)))
          << bits << " bits, " << gamma << ": " << got;
    }
  }
}

TEST_F(Images, ThatAreBrokenAreNamed) {
  const std::string picture = jpeg(ramp(64, 64, 3), JCS_RGB);
  write("cut.jpg", picture.substr(0, picture.size() * 2 / 3));
  EXPECT_THAT(failure("cut.jpg"), AllOf(HasSubstr("cut.jpg: "), HasSubstr("end")));
  write("header.jpg", picture.substr(0, 20));
  EXPECT_THAT(failure("header.jpg"), HasSubstr("header.jpg: "));
  const std::string drawing = png(ramp(64, 64, 3), PNG_FORMAT_RGB);
  write("cut.png", drawing.substr(0, drawing.size() / 2));
  EXPECT_THAT(failure("cut.png"), HasSubstr("cut.png: "));
  std::string damaged = drawing;
  damaged[damaged.size() / 2] ^= 1;
  write("damaged.png", damaged);
  EXPECT_THAT(failure("damaged.png"), HasSubstr("damaged.png: "));
  std::string huge = drawing;
  for (const size_t place : {16, 20}) huge[place + 1] = '\x7f';  // rows and columns
  write("huge.png", huge);
  EXPECT_THAT(failure("huge.png"), HasSubstr("huge.png: "));
  write("text.jpg", "no image");
  EXPECT_THAT(failure("text.jpg"), HasSubstr("neither a JPEG nor a PNG"));
  EXPECT_THAT(failure("none.jpg"), HasSubstr("can't be opened"));
}

TEST_F(Images, AFolderOfClasses) {
  write("dog/b.png", png(ramp(40, 60, 3), PNG_FORMAT_RGB));
  write("cat/more/a.JPG", jpeg(ramp(60, 40, 3), JCS_RGB));
  write("cat/z.png", png(at::full({50, 50, 3}, 51, at::kByte), PNG_FORMAT_RGB));
  write("cat/notes.txt", "no image");
  ImageFolder images(folder_,
                     {.resize = 36, .size = 32, .mean = {0, 0, 0.2}, .deviation = {1, 1, 2}});
  EXPECT_EQ(images.size(), 3u);
  EXPECT_EQ(images.classes(), (std::vector<std::string>{"cat", "dog"}));
  EXPECT_EQ(images.path(0), (folder_ / "cat/more/a.JPG").string());
  const auto batch = images.get_batch(std::vector<size_t>{2, 1, 0});
  EXPECT_EQ(batch.data.sizes(), (std::vector<int64_t>{3, 3, 32, 32}));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({1, 0, 0}, at::kLong)));
  EXPECT_TRUE(at::allclose(batch.data[1][0], at::full({32, 32}, 0.2)));
  EXPECT_TRUE(at::allclose(batch.data[1][2], at::zeros({32, 32}), 1e-5, 1e-6));
  // The middle of the ramp stays in the middle.
  EXPECT_NEAR(batch.data[0][0].mean().item<float>(), 125 / 255.0, 0.02);
  write("bird/rows.png", png(ramp(60, 40, 3).transpose(0, 1).contiguous(), PNG_FORMAT_RGB));
  write("bird/tall.png", png(ramp(40, 60, 3).transpose(0, 1).contiguous(), PNG_FORMAT_RGB));
  ImageFolder birds(folder_, {.resize = 36, .size = 32, .mean = {}, .deviation = {1, 1, 1}});
  for (const size_t bird : {0, 1}) {
    EXPECT_NEAR(birds.get_batch(std::vector<size_t>{bird}).data[0][0].mean().item<float>(),
                125 / 255.0, 0.02);
  }
  fs::remove_all(folder_ / "bird");

  ImageFolder cut(folder_, {.transform = [](const at::Tensor& image, size_t /*index*/) {
                    return image.narrow(1, 0, 8).narrow(2, 0, 8);
                  }});
  EXPECT_EQ(cut.get_batch(std::vector<size_t>{0, 1}).data.sizes(),
            (std::vector<int64_t>{2, 3, 8, 8}));
  ImageFolder raw(folder_,
                  {.transform = [](const at::Tensor& image, size_t /*index*/) { return image; }});
  EXPECT_THAT(error_of([&] {
                raw.get_batch(std::vector<size_t>{0, 2});
              }),
              AllOf(HasSubstr("b.png: the transform made it [3, 40, 60]"), HasSubstr("a.JPG")));
  fs::create_directories(folder_ / "empty");
  EXPECT_THAT(error_of([&] { ImageFolder{folder_}; }), HasSubstr("empty: has no image"));
  EXPECT_THAT(error_of([&] { ImageFolder{folder_ / "none"}; }), HasSubstr("can't be listed"));
}

TEST_F(Files, ABuildWithoutDecodersSaysSo) {
  if (can_decode_images()) GTEST_SKIP() << "built with libjpeg and libpng";
  EXPECT_THAT(error_of([&] { ImageFolder{folder_}; }), HasSubstr("-DHORON_IMAGES=ON"));
}

}  // namespace
}  // namespace horon::datasets_test

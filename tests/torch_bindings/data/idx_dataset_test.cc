// IDX files as written by others, packed and not, and every way in which they can be broken.
#include "horon/torch_bindings/data/idx_dataset.h"

#include <filesystem>
#include <fstream>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <zlib.h>

#include "horon/tests/support/error_of.h"

namespace horon::idx_dataset_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

std::string idx(std::vector<uint32_t> shape, size_t elements, unsigned char type = 8) {
  std::string bytes{'\0', '\0', static_cast<char>(type), static_cast<char>(shape.size())};
  for (const uint32_t extent : shape) {
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(extent >> shift);
  }
  for (size_t i = 0; i < elements; ++i) bytes += static_cast<char>(i * 7 % 256);
  return bytes;
}

class IdxFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("horon_idx_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  std::string write_packed(const std::string& name, const std::string& bytes) const {
    const std::string path = folder_ / name;
    gzFile file = gzopen(path.c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return path;
  }
  static std::string failure(const std::string& path) {
    return error_of([&] { read_idx(path); });
  }
  std::string dataset_failure(const fs::path& folder) const {
    return error_of([&] { IdxDataset(folder.string(), IdxDataset::Split::Train); });
  }

  fs::path folder_;
};

TEST_F(IdxFiles, RawAndPackedAreSeenFromTheContent) {
  const std::string bytes = idx({2, 3, 4}, 24);
  const at::Tensor want = (at::arange(24) * 7).remainder(256).to(at::kByte).reshape({2, 3, 4});
  EXPECT_TRUE(at::equal(read_idx(write("raw", bytes)), want));
  EXPECT_TRUE(at::equal(read_idx(write_packed("packed", bytes)), want));
  EXPECT_TRUE(at::equal(read_idx(write("raw.gz", bytes)), want));
  EXPECT_EQ(read_idx(write("empty", idx({0, 28, 28}, 0))).sizes(), at::IntArrayRef({0, 28, 28}));
}

TEST_F(IdxFiles, BrokenFilesAreNamed) {
  const std::string whole = idx({5, 2, 2}, 20);
  const auto says = [](const char* what) {
    return AllOf(StartsWith("invalid argument"), HasSubstr("broken"), HasSubstr(what));
  };
  EXPECT_THAT(failure((folder_ / "broken").string()), says("no such file"));
  EXPECT_THAT(failure(write("broken", "")), says("too short"));
  EXPECT_THAT(failure(write("broken", "\x89PNG and more")), says("magic"));
  EXPECT_THAT(failure(write("broken", idx({}, 4))), says("magic"));
  EXPECT_THAT(failure(write("broken", idx({4}, 16, 13))), says("type 13"));
  EXPECT_THAT(failure(write("broken", whole.substr(0, 9))), says("header"));
  for (const size_t length : {size_t{16}, size_t{17}, whole.size() - 1}) {
    EXPECT_THAT(failure(write("broken", whole.substr(0, length))), says("truncated"));
  }
  EXPECT_THAT(failure(write("broken", whole + "x")), says("is longer than the"));
  EXPECT_THAT(failure(write("broken", idx({0xffffffff, 0xffffffff, 0xffffffff}, 9))),
              says("truncated"));
  EXPECT_THAT(failure(write("broken", idx({0xffffffff, 100}, 9))), says("truncated"));
}

TEST_F(IdxFiles, CutPackedFileIsNamed) {
  std::string noise;
  for (uint32_t i = 0, x = 1; i < 5000; ++i, x = x * 1664525 + 1013904223)
    noise += static_cast<char>(x >> 24);
  const std::string path = write_packed("broken.gz", idx({5000}, 0) + noise);
  fs::resize_file(path, fs::file_size(path) / 2);
  EXPECT_THAT(failure(path), AllOf(HasSubstr("broken.gz"), HasSubstr("truncated")));
}

TEST_F(IdxFiles, FoldersThatLackSomethingSayWhat) {
  EXPECT_THAT(dataset_failure(folder_ / "none"),
              AllOf(HasSubstr("none"), HasSubstr("apt-get install dataset-fashion-mnist")));
  EXPECT_THAT(dataset_failure(folder_),
              AllOf(HasSubstr("train-images-idx3-ubyte"), HasSubstr(".gz")));
  write("train-images-idx3-ubyte", idx({5, 2, 2}, 20));
  EXPECT_THAT(dataset_failure(folder_), HasSubstr("train-labels-idx1-ubyte"));
  write_packed("train-labels-idx1-ubyte.gz", idx({4}, 4));
  EXPECT_THAT(dataset_failure(folder_), AllOf(HasSubstr("4 labels"), HasSubstr("5 images")));
  write_packed("train-labels-idx1-ubyte.gz", idx({5, 1}, 5));
  EXPECT_THAT(dataset_failure(folder_), HasSubstr("1 dimension"));
  write("train-images-idx3-ubyte", idx({20}, 20));
  EXPECT_THAT(dataset_failure(folder_), HasSubstr("3 dimensions"));
}

TEST_F(IdxFiles, ALabelThatTheModelDoesNotHaveIsNamed) {
  write("train-images-idx3-ubyte", idx({3, 2, 2}, 12));
  write("train-labels-idx1-ubyte", idx({3}, 3));  // 0, 7, 14
  const auto read = [&](int64_t classes) {
    IdxDataset(folder_.string(), IdxDataset::Split::Train, {.classes = classes});
  };
  EXPECT_THAT(error_of([&] { read(14); }),
              AllOf(HasSubstr("train-labels-idx1-ubyte: has the label 14"),
                    HasSubstr("labels from 0 to 13")));
  read(15);
  read(0);
}

TEST_F(IdxFiles, BatchesAreCutCastAndNormalised) {
  write_packed("t10k-images.idx3-ubyte.gz", idx({6, 2, 3}, 36));
  write("t10k-labels-idx1-ubyte", idx({6}, 6));
  IdxDataset dataset(folder_.string(), IdxDataset::Split::Test, {.mean = 0.25, .deviation = 0.5});
  EXPECT_EQ(dataset.size(), 6u);
  const auto batch = dataset.get_batch(std::vector<size_t>{4, 0, 4});
  ASSERT_EQ(batch.data.sizes(), at::IntArrayRef({3, 1, 2, 3}));
  const at::Tensor fourth =
      (at::arange(24, 30) * 7).remainder(256).to(at::kFloat).reshape({1, 2, 3});
  EXPECT_TRUE(at::allclose(batch.data[0], (fourth / 255 - 0.25) / 0.5));
  EXPECT_TRUE(at::equal(batch.data[0], batch.data[2]));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({28, 0, 28}, at::kLong)));
  EXPECT_EQ(dataset.get_batch({}).data.sizes(), at::IntArrayRef({0, 1, 2, 3}));
  EXPECT_ANY_THROW(dataset.get_batch(std::vector<size_t>{6}));
}

TEST(FashionMnist, TheRealFiles) {
  const std::string folder = "/usr/share/datasets/fashion-mnist";
  if (!fs::is_directory(folder)) GTEST_SKIP() << folder << " is not there";
  IdxDataset train(folder, IdxDataset::Split::Train), test(folder, IdxDataset::Split::Test);
  EXPECT_EQ(train.size(), 60000u);
  EXPECT_EQ(test.size(), 10000u);
  for (const IdxDataset* part : {&train, &test}) {
    EXPECT_EQ(part->images().sizes().slice(1), at::IntArrayRef({28, 28}));
    const at::Tensor classes = at::bincount(part->targets());
    EXPECT_TRUE(classes.eq(*part->size() / 10).all().item<bool>()) << classes;
  }
  EXPECT_NEAR(train.images().to(at::kFloat).mean().item<double>() / 255, 0.286, 1e-3);
}

}  // namespace
}  // namespace horon::idx_dataset_test

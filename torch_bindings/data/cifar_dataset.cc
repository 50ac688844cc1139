#include "horon/torch_bindings/data/cifar_dataset.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {
namespace {

constexpr int64_t kPixels = 3 * 32 * 32;

[[noreturn]] void fail_cifar(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, core::concat(path, ": ", why));
}

std::vector<std::string> cifar_files(CifarDataset::Kind kind, CifarDataset::Split split) {
  const bool train = split == CifarDataset::Split::Train;
  if (kind == CifarDataset::Kind::Cifar100) return {train ? "train.bin" : "test.bin"};
  if (!train) return {"test_batch.bin"};
  return {"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin",
          "data_batch_5.bin"};
}

std::filesystem::path cifar_folder(const std::string& given, CifarDataset::Kind kind,
                                   const std::string& first_file) {
  const bool ten = kind == CifarDataset::Kind::Cifar10;
  const std::filesystem::path folder(given);
  std::error_code ignored;
  for (const auto& place : {folder, folder / (ten ? "cifar-10-batches-bin" : "cifar-100-binary")}) {
    if (std::filesystem::is_regular_file(place / first_file, ignored)) return place;
  }
  fail_cifar(given, core::concat("has no ", first_file, "; it should hold the files of ",
                                 ten ? "cifar-10-binary.tar.gz" : "cifar-100-binary.tar.gz",
                                 " from www.cs.toronto.edu/~kriz/cifar.html, unpacked"));
}

// uint8 [records, labels + pixels]
at::Tensor read_records(const std::filesystem::path& path, int64_t labels) {
  std::error_code error;
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  if (error) fail_cifar(path.string(), "no such file");
  const int64_t record = labels + kPixels;
  if (bytes == 0 || bytes % record != 0) {
    fail_cifar(path.string(), core::concat("has ", bytes, " bytes, which are not whole records of ",
                                           record, " bytes; it is truncated, or not a CIFAR file"));
  }
  at::Tensor records = at::empty({bytes / record, record}, at::kByte);
  std::ifstream file(path, std::ios::binary);
  file.read(static_cast<char*>(records.mutable_data_ptr()), bytes);
  if (file.gcount() != bytes) fail_cifar(path.string(), "can't be read");
  return records;
}

at::Tensor per_channel(const std::array<double, 3>& numbers) {
  return at::tensor(at::ArrayRef<double>(numbers)).to(at::kFloat).view({3, 1, 1});
}

}  // namespace

CifarDataset::CifarDataset(const std::string& folder, Kind kind, Split split,
                           const Options& options) {
  std::array<double, 3> factor{};
  std::array<double, 3> offset{};
  for (size_t c = 0; c < 3; ++c) {
    if (options.deviation[c] == 0) fail_cifar(folder, "deviation is 0; give numbers above 0");
    factor[c] = 1 / (255 * options.deviation[c]);
    offset[c] = -options.mean[c] / options.deviation[c];
  }
  factor_ = per_channel(factor);
  offset_ = per_channel(offset);
  // A record of CIFAR-100 begins with the superclass and the class.
  const int64_t labels = kind == Kind::Cifar10 ? 1 : 2;
  const int64_t column = kind == Kind::Cifar100 && !options.coarse ? 1 : 0;
  const int64_t classes = kind == Kind::Cifar10 ? 10 : (options.coarse ? 20 : 100);
  const std::vector<std::string> names = cifar_files(kind, split);
  const std::filesystem::path place = cifar_folder(folder, kind, names.front());
  std::vector<at::Tensor> images;
  std::vector<at::Tensor> targets;
  for (const std::string& name : names) {
    const at::Tensor records = read_records(place / name, labels);
    targets.push_back(records.select(1, column).to(at::kLong));
    if (const auto largest = targets.back().max().item<int64_t>(); largest >= classes) {
      fail_cifar((place / name).string(),
                 core::concat("has the label ", largest, ", but there are ", classes, " classes"));
    }
    images.push_back(records.narrow(1, labels, kPixels));
  }
  images_ = at::cat(images).view({-1, 3, 32, 32});
  targets_ = at::cat(targets);
}

torch::data::Example<> CifarDataset::get_batch(c10::ArrayRef<size_t> indices) {
  at::Tensor index = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<int64_t>());
  at::Tensor pixels = images_.index_select(0, index).to(at::kFloat);
  pixels.mul_(factor_).add_(offset_);
  return {std::move(pixels), targets_.index_select(0, index)};
}

std::optional<size_t> CifarDataset::size() const { return static_cast<size_t>(images_.size(0)); }

}  // namespace horon

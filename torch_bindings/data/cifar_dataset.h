// CIFAR-10 and CIFAR-100 in their binary version, as a batch dataset for torch::data.
//
// The images stay as bytes in one tensor; a batch is cut out, cast and normalised in one go. The
// files are those of cifar-10-binary.tar.gz and cifar-100-binary.tar.gz, unpacked.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

namespace horon {

class CifarDataset
    : public torch::data::datasets::BatchDataset<CifarDataset, torch::data::Example<>> {
 public:
  enum class Kind { Cifar10, Cifar100 };
  enum class Split { Train, Test };

  struct Options {
    // Pixels are divided by 255, then (x - mean) / deviation, for red, green and blue. CIFAR-10:
    // {0.4914, 0.4822, 0.4465} and {0.2470, 0.2435, 0.2616}.
    std::array<double, 3> mean = {0, 0, 0};
    std::array<double, 3> deviation = {1, 1, 1};
    // CIFAR-100: the 20 superclasses instead of the 100 classes.
    bool coarse = false;
  };

  // Reads data_batch_1.bin ... data_batch_5.bin or test_batch.bin (CIFAR-10), train.bin or test.bin
  // (CIFAR-100), from the folder or from its cifar-10-batches-bin or cifar-100-binary. Throws
  // Error(InvalidArgument) that names the file: not there, not of whole records, a label too large.
  CifarDataset(const std::string& folder, Kind kind, Split split, const Options& options);
  CifarDataset(const std::string& folder, Kind kind, Split split)
      : CifarDataset(folder, kind, split, Options{}) {}

  // data: float32 [n, 3, 32, 32]; target: int64 [n].
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;

  const at::Tensor& images() const { return images_; }    // uint8 [all, 3, 32, 32]
  const at::Tensor& targets() const { return targets_; }  // int64 [all]

 private:
  at::Tensor factor_;  // float32 [3, 1, 1]: pixels * factor + offset
  at::Tensor offset_;
  at::Tensor images_;
  at::Tensor targets_;
};

}  // namespace horon

// Image datasets in MNIST's file format (IDX), packed with gzip or not, as a batch dataset for
// torch::data.
//
// The images stay as bytes in one tensor, a quarter of the memory of floats; a batch is cut out,
// cast and normalised in one go. Works for MNIST, Fashion-MNIST, KMNIST and whatever else names its
// files alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

namespace horon {

// One IDX file of unsigned bytes, as a uint8 tensor of the shape that the file states. Packed or
// not is seen from the content. Throws Error(InvalidArgument) naming the file: not there, not an
// IDX file of bytes, too short, too long.
at::Tensor read_idx(const std::string& path);

class IdxDataset : public torch::data::datasets::BatchDataset<IdxDataset, torch::data::Example<>> {
 public:
  enum class Split { Train, Test };

  struct Options {
    // Pixels are divided by 255, then (x - mean) / deviation. Fashion-MNIST: 0.286 and 0.353;
    // MNIST: 0.1307 and 0.3081.
    double mean = 0.0;
    double deviation = 1.0;
    // Labels are below it, as a model with so many outputs needs them; 0: any.
    int64_t classes = 0;
  };

  // Reads train-images-idx3-ubyte and train-labels-idx1-ubyte (t10k-... for the test images), each
  // with or without .gz, from the folder. Throws Error(InvalidArgument) that says what is missing,
  // broken or does not fit together.
  IdxDataset(const std::string& folder, Split split, const Options& options);
  IdxDataset(const std::string& folder, Split split) : IdxDataset(folder, split, Options{}) {}

  // data: float32 [n, 1, rows, columns]; target: int64 [n].
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override;

  const at::Tensor& images() const { return images_; }    // uint8 [all, rows, columns]
  const at::Tensor& targets() const { return targets_; }  // int64 [all]

 private:
  Options options_;
  at::Tensor images_;
  at::Tensor targets_;
};

}  // namespace horon

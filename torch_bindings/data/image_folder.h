// A folder of images, one subfolder for each class, as a batch dataset for torch::data:
//
//     folder/cat/1.jpg
//     folder/cat/2.jpg
//     folder/dog/a.png
//
// Images are read and decoded (image_file.h) when they are asked for, so a loader with threads pays
// (prefetch_loader.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

namespace horon {

class ImageFolder
    : public torch::data::datasets::BatchDataset<ImageFolder, torch::data::Example<>> {
 public:
  struct Options {
    // The shorter side is made `resize` pixels long (bilinear, smoothed), then the middle of `size`
    // x `size` pixels is cut out, as torchvision's Resize and CenterCrop do.
    int64_t resize = 256;
    int64_t size = 224;
    // Replaces resizing and cutting: gets an image, uint8 [3, rows, columns], and its index, and
    // returns one of the same shape for all images. For random crops and flips. Called by the
    // threads of the loader, several at a time. Random numbers are seeded by the index and the
    // epoch, or each epoch repeats the same crops; copies of a sampler are in the same epoch:
    //
    //   const horon::DistributedRandomSampler sampler(*horon::ImageFolder("train").size());
    //   horon::ImageFolder::Options options;
    //   options.transform = [sampler](const at::Tensor& image, size_t index) {
    //     std::seed_seq seeds{sampler.epoch(), index};
    //     std::mt19937 random(seeds);
    //     std::uniform_int_distribution<int64_t> row(0, image.size(1) - 224);
    //     return image.narrow(1, row(random), 224).narrow(2, 0, 224);
    //   };
    std::function<at::Tensor(const at::Tensor& image, size_t index)> transform = {};
    // Then pixels are divided by 255, and (x - mean) / deviation, for red, green and blue.
    std::array<double, 3> mean = {0.485, 0.456, 0.406};  // those of ImageNet
    std::array<double, 3> deviation = {0.229, 0.224, 0.225};
  };

  // Lists the files that end in .jpg, .jpeg or .png (in capitals too) of all subfolders and of
  // theirs, in the order of their names, which is the same on all machines. Links to folders are
  // followed, except those back to a folder that they are in. Throws Error(InvalidArgument): a
  // folder that is not there or can't be listed, no class, a class without images; Error(Config) if
  // this build decodes no images (can_decode_images()).
  ImageFolder(const std::string& folder, const Options& options);
  explicit ImageFolder(const std::string& folder) : ImageFolder(folder, Options{}) {}

  // data: float32 [n, 3, size, size], or what the transform gives; target: int64 [n], the class.
  // Throws Error(InvalidArgument) that names the image which can't be read or has another shape
  // than the others.
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override;
  std::optional<size_t> size() const override { return files_->size(); }

  // The names of the subfolders, sorted: that of class 0, 1, ...
  const std::vector<std::string>& classes() const { return *classes_; }
  const std::string& path(size_t index) const { return files_->at(index).path; }
  int64_t target(size_t index) const { return files_->at(index).target; }

 private:
  struct File {
    std::string path;
    int64_t target;
  };
  void list(const std::string& folder);
  at::Tensor load(size_t index) const;

  Options options_;
  at::Tensor factor_;  // float32 [3, 1, 1]: pixels * factor + offset
  at::Tensor offset_;
  // Copies of the dataset, one for each thread of a loader, share the lists.
  std::shared_ptr<const std::vector<File>> files_;
  std::shared_ptr<const std::vector<std::string>> classes_;
};

}  // namespace horon

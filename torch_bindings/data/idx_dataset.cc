#include "horon/torch_bindings/data/idx_dataset.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <vector>

#include <ATen/ops/empty.h>
#include <zlib.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon {
namespace {

namespace fs = std::filesystem;
using core::concat;

constexpr int kUnsignedByte = 8;       // IDX's code of the element type
constexpr int kDimensionsMax = 8;      // no dataset has more; a broken file may say so
constexpr int64_t kDeflateMax = 1032;  // deflate packs at most this many bytes into one

[[noreturn]] void fail(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat(path, ": ", why));
}

// zlib reads a file that is not packed as it is.
class ByteReader {
 public:
  explicit ByteReader(const std::string& path)
      : path_(path), file_(gzopen(path.c_str(), "rb"), gzclose) {
    if (!file_) fail(path, "can't be opened");
    gzbuffer(file_.get(), 1 << 17);
  }

  // Up to `count` bytes; fewer only at the end of the file.
  int64_t read(unsigned char* to, int64_t count) {
    int64_t done = 0;
    while (done < count) {
      const int64_t piece = std::min<int64_t>(count - done, int64_t{1} << 30);
      const int got = gzread(file_.get(), to + done, static_cast<unsigned>(piece));
      if (got < 0) fail(path_, failure());
      if (got == 0) break;
      done += got;
    }
    return done;
  }

 private:
  std::string failure() const {
    int code = Z_OK;
    const char* text = gzerror(file_.get(), &code);
    return code == Z_BUF_ERROR ? "is truncated (the compressed data ends too early)"
                               : concat("can't be read: ", text);
  }

  std::string path_;
  std::unique_ptr<gzFile_s, int (*)(gzFile)> file_;
};

std::vector<int64_t> read_header(ByteReader& reader, const std::string& path) {
  std::array<unsigned char, 4> magic{};
  if (reader.read(magic.data(), 4) != 4) fail(path, "is too short to be an IDX file");
  const int dimensions = magic[3];
  if (magic[0] != 0 || magic[1] != 0 || dimensions < 1 || dimensions > kDimensionsMax) {
    fail(path, "is not an IDX file (wrong magic number)");
  }
  if (magic[2] != kUnsignedByte) {
    fail(path, concat("holds elements of IDX type ", int{magic[2]},
                      "; only unsigned bytes (8) are supported"));
  }
  std::vector<int64_t> shape;
  for (int i = 0; i < dimensions; ++i) {
    std::array<unsigned char, 4> b{};
    if (reader.read(b.data(), 4) != 4) fail(path, "is truncated within its header");
    shape.push_back(int64_t{b[0]} << 24 | int64_t{b[1]} << 16 | int64_t{b[2]} << 8 | int64_t{b[3]});
  }
  return shape;
}

// The number of bytes that the header promises; refused if the file can't hold that many, before
// memory is taken.
int64_t checked_count(const std::vector<int64_t>& shape, const std::string& path) {
  const auto file_bytes = static_cast<int64_t>(fs::file_size(path));
  int64_t count = 1;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count) || count / kDeflateMax > file_bytes) {
      fail(path, concat("is truncated: its header says shape ", core::shape_text(shape),
                        ", but it has ", file_bytes, " bytes"));
    }
  }
  return count;
}

std::string find_file(const std::string& folder, const std::string& stem, const std::string& kind) {
  for (const char* separator : {"-", "."}) {
    for (const char* ending : {"", ".gz"}) {
      const fs::path path = fs::path(folder) / concat(stem, separator, kind, ending);
      std::error_code ignored;
      if (fs::is_regular_file(path, ignored)) return path.string();
    }
  }
  fail(folder, concat("has neither ", stem, "-", kind, " nor ", stem, "-", kind, ".gz"));
}

void check_folder(const std::string& folder) {
  std::error_code ignored;
  if (fs::is_directory(folder, ignored)) return;
  fail(folder,
       "no such folder; it should hold images in MNIST's format. For Fashion-MNIST: 'apt-get "
       "install "
       "dataset-fashion-mnist' puts them in /usr/share/datasets/fashion-mnist, or fetch the four "
       "files from "
       "github.com/zalandoresearch/fashion-mnist");
}

}  // namespace

at::Tensor read_idx(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) fail(path, "no such file");
  ByteReader reader(path);
  const std::vector<int64_t> shape = read_header(reader, path);
  const int64_t count = checked_count(shape, path);
  at::Tensor content = at::empty(shape, at::kByte);
  auto* bytes = static_cast<unsigned char*>(content.mutable_data_ptr());
  const int64_t got = reader.read(bytes, count);
  if (got != count) {
    fail(path, concat("is truncated: it has ", got, " of ", count, " bytes of the shape ",
                      core::shape_text(shape)));
  }
  unsigned char extra = 0;
  if (reader.read(&extra, 1) != 0) {
    fail(path,
         concat("is longer than the ", count, " bytes of its shape ", core::shape_text(shape)));
  }
  return content;
}

IdxDataset::IdxDataset(const std::string& folder, Split split, const Options& options)
    : options_(options) {
  if (options.deviation == 0) fail(folder, "deviation is 0; give a number above 0");
  check_folder(folder);
  const std::string stem = split == Split::Train ? "train" : "t10k";
  const std::string image_file = find_file(folder, stem + "-images", "idx3-ubyte");
  const std::string label_file = find_file(folder, stem + "-labels", "idx1-ubyte");
  images_ = read_idx(image_file);
  const at::Tensor labels = read_idx(label_file);
  if (images_.dim() != 3) {
    fail(image_file,
         concat("should have 3 dimensions (image, row, column), but has ", images_.dim()));
  }
  if (labels.dim() != 1)
    fail(label_file, concat("should have 1 dimension, but has ", labels.dim()));
  if (labels.size(0) != images_.size(0)) {
    fail(label_file, concat("has ", labels.size(0), " labels for the ", images_.size(0),
                            " images of ", image_file));
  }
  targets_ = labels.to(at::kLong);
  const int64_t largest = targets_.numel() == 0 ? 0 : targets_.max().item<int64_t>();
  if (options.classes != 0 && largest >= options.classes) {
    fail(label_file, concat("has the label ", largest, ", but there are ", options.classes,
                            " classes; give data with labels from 0 to ", options.classes - 1,
                            ", or a model with more classes"));
  }
}

torch::data::Example<> IdxDataset::get_batch(c10::ArrayRef<size_t> indices) {
  at::Tensor index = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<int64_t>());
  at::Tensor pixels = images_.index_select(0, index).unsqueeze_(1).to(at::kFloat);
  pixels.mul_(1.0 / (255.0 * options_.deviation)).sub_(options_.mean / options_.deviation);
  return {std::move(pixels), targets_.index_select(0, index)};
}

std::optional<size_t> IdxDataset::size() const { return static_cast<size_t>(images_.size(0)); }

}  // namespace horon

#include "horon/torch_bindings/checkpoint/checkpoint_file.h"

#include <array>
#include <caffe2/serialize/inline_container.h>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#include <torch/csrc/jit/serialization/import_read.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/replace_file.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/checkpoint/sha256.h"

namespace horon::torch_detail {
namespace {

using core::concat;

constexpr std::string_view kSign = "horon checkpoint 1 ";
constexpr size_t kDigits = 64;
constexpr size_t kLabel = 192;  // bytes of the whole comment

[[noreturn]] void fail_file(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::OperationFailed, concat("checkpoint ", path, ": ", why));
}

// Where an archive is written to. A sink keeps its error for the end, because no exception may pass
// LibTorch's writer.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void write(const char* data, size_t bytes) = 0;
};

// A zip archive ends in the length of its comment, two bytes of 0. At least these two are kept back
// until finish() writes another length.
class HashedFile : public Sink {
 public:
  explicit HashedFile(const std::string& path)
      : path_(path), file_(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) keep_error("can't be created");
  }
  ~HashedFile() override {
    if (file_ >= 0) close(file_);
  }
  HashedFile(const HashedFile&) = delete;
  HashedFile& operator=(const HashedFile&) = delete;

  void write(const char* data, size_t bytes) override {
    if (waiting_.size() + bytes >= kBuffer && bytes >= 2) {
      put(waiting_.data(), waiting_.size());
      put(data, bytes - 2);
      waiting_.assign(data + bytes - 2, 2);
    } else {
      waiting_.append(data, bytes);
    }
  }

  // `comment`: without its digits.
  void finish(const std::string& comment) {
    const size_t length = comment.size() + kDigits;
    if (waiting_.size() < 2 || !waiting_.ends_with(std::string_view("\0\0", 2))) {
      keep_error("LibTorch's archive has no room for a comment");
    }
    waiting_.resize(waiting_.size() - 2);
    waiting_ += static_cast<char>(length & 255);
    waiting_ += static_cast<char>(length >> 8);
    waiting_ += comment;
    put(waiting_.data(), waiting_.size());
    const std::string digits = hash_.hex();
    put(digits.data(), digits.size());
    if (error_.empty() && fsync(file_) != 0) keep_error("can't be written to disk (fsync)");
    const int file = file_;
    file_ = -1;
    if (file >= 0 && close(file) != 0) keep_error("can't be closed");
  }
  const std::string& error() const { return error_; }

 private:
  static constexpr size_t kBuffer = 1 << 20;

  void keep_error(const char* what) {
    if (error_.empty()) error_ = concat(what, ": ", std::strerror(errno));
  }
  void put(const char* data, size_t bytes) {
    if (!error_.empty()) return;
    hash_.add(data, bytes);
    while (bytes > 0) {
      const ssize_t written = ::write(file_, data, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return keep_error("can't be written");
      data += written;
      bytes -= static_cast<size_t>(written);
    }
  }

  const std::string path_;
  int file_;
  Sha256 hash_;
  std::string waiting_;
  std::string error_;
};

class Text : public Sink {
 public:
  void write(const char* data, size_t bytes) override { text_.append(data, bytes); }
  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

// Writes as torch.save() of Python: torch::pickle_save() would put LibTorch's types around each
// container, which torch.load(weights_only=True) refuses.
void write_archive(Sink& sink, const c10::IValue& content) {
  std::string pickled;
  torch::jit::Pickler pickler([&](const char* data, size_t bytes) { pickled.append(data, bytes); },
                              nullptr, nullptr, nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(content);
  pickler.stop();
  caffe2::serialize::PyTorchStreamWriter writer([&](const void* data, size_t bytes) {
    sink.write(static_cast<const char*>(data), bytes);
    return bytes;
  });
  size_t count = 0;
  for (const at::Tensor& tensor : pickler.tensorData()) {
    const torch::jit::WriteableTensorData data = torch::jit::getWriteableTensorData(tensor);
    writer.writeRecord(concat("data/", count++), data.data(), data.sizeInBytes());
  }
  writer.writeRecord("data.pkl", pickled.data(), pickled.size());
  writer.writeEndOfFile();
}

c10::IValue read_archive(caffe2::serialize::PyTorchStreamReader& reader) {
  return torch::jit::readArchiveAndTensors("data", "", "data/", std::nullopt, std::nullopt,
                                           std::nullopt, reader);
}

std::string comment_of(const CheckpointLabel& label) {
  std::string comment = concat(kSign, "number=", label.number, " step=", label.step,
                               " metric=", metric_text(label.metric), " ");
  comment.resize(kLabel - kDigits - 7, ' ');
  return comment + "sha256=";
}

// Opens the file at its end.
std::ifstream open_to_read(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail_file(path, concat("can't be opened: ", std::strerror(errno)));
  return file;
}

// The last `kLabel` bytes.
std::string read_comment(const std::string& path) {
  std::ifstream file = open_to_read(path);
  const auto size = static_cast<std::streamoff>(file.tellg());
  std::string comment(kLabel, '\0');
  if (size >= static_cast<std::streamoff>(kLabel)) {
    file.seekg(size - static_cast<std::streamoff>(kLabel));
    file.read(comment.data(), static_cast<std::streamsize>(kLabel));
  }
  if (!file) fail_file(path, "can't be read");
  if (!comment.starts_with(kSign)) {
    fail_file(path, concat("is truncated or was not written by Horon (its ", size,
                           " bytes do not end in the label of a checkpoint)"));
  }
  return comment;
}

void check_hash(const std::string& path, const std::string& comment) {
  std::ifstream file = open_to_read(path);  // again: another job may have removed it meanwhile
  auto left = static_cast<uint64_t>(file.tellg()) - kDigits;
  file.seekg(0);
  Sha256 hash;
  std::vector<char> piece(1 << 20);
  while (left > 0 && file) {
    file.read(piece.data(), static_cast<std::streamsize>(std::min<uint64_t>(piece.size(), left)));
    hash.add(piece.data(), static_cast<size_t>(file.gcount()));
    left -= static_cast<uint64_t>(file.gcount());
  }
  if (left > 0) fail_file(path, "can't be read to its end");
  if (hash.hex() != comment.substr(kLabel - kDigits)) {
    fail_file(path, "is damaged: its SHA-256 is not the one in its label");
  }
}

// A new file beside `path`, locked for as long as it is being written. Another job may be writing
// the same checkpoint: one that was given the same folder, or an earlier start of this one, on a
// host that was taken for lost. So the name is nobody else's, and remove_if_left() asks for the
// lock. On a file system without locks there is none.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& path) {
    do {
      if (file_ >= 0) close(file_);
      try {
        name_ = core::make_file_beside(path);
      } catch (...) {
        fail_file(path, concat("can't be created: ", core::current_error().what()));
      }
      file_ = open(name_.c_str(), O_RDWR | O_CLOEXEC);
    } while (has_been_removed());
  }
  ~UnfinishedFile() {
    if (file_ >= 0) close(file_);
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  const std::string& name() const { return name_; }

 private:
  // By a job that has found it before it was locked.
  bool has_been_removed() const {
    if (file_ < 0) return errno == ENOENT;
    if (flock(file_, LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK;
    struct stat status {};
    return fstat(file_, &status) == 0 && status.st_nlink == 0;
  }

  std::string name_;
  int file_ = -1;
};

void sync_folder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  const int file = open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  (void)fsync(file);  // some file systems lack this call, and need none
  close(file);
}

}  // namespace

std::string metric_text(const std::optional<double>& metric) {
  if (!metric) return "none";
  if (std::isnan(*metric)) return "nan";  // whatever its sign
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), *metric);
  HORON_CHECK(error == std::errc(), "a double fits into 32 characters");
  return {text.data(), end};
}

void write_checkpoint_file(const std::string& path, const CheckpointLabel& label,
                           const c10::IValue& content) {
  const UnfinishedFile unfinished(path);
  const std::string& temporary = unfinished.name();
  std::string error;
  try {
    HashedFile file(temporary);
    if (file.error().empty()) write_archive(file, content);
    if (file.error().empty()) file.finish(comment_of(label));
    error = file.error();
  } catch (...) {
    error = concat("can't be written: ", core::current_error().what());
  }
  if (error.empty() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    error = concat("can't rename ", temporary, " to it: ", std::strerror(errno));
  }
  if (!error.empty()) {
    (void)std::remove(temporary.c_str());
    fail_file(path, error);
  }
  sync_folder(path);
}

void remove_if_left(const std::string& unfinished) {
  const int file = open(unfinished.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return;
  const bool is_being_written = flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (!is_being_written) (void)std::remove(unfinished.c_str());
  close(file);
}

CheckpointLabel read_checkpoint_label(const std::string& path) {
  const std::string comment = read_comment(path);
  CheckpointLabel label;
  char metric[40] = "";
  unsigned long long number = 0;  // NOLINT: sscanf's types
  long long step = 0;             // NOLINT
  if (std::sscanf(comment.c_str() + kSign.size(), "number=%llu step=%lld metric=%39s", &number,
                  &step, metric) != 3) {
    fail_file(path, "is damaged: its label can't be read");
  }
  label.number = number;
  label.step = step;
  label.metric = core::parse_number(metric);
  if (!label.metric && std::string_view(metric) != "none") {
    fail_file(path, "is damaged: its label's metric can't be read");
  }
  return label;
}

c10::IValue read_checkpoint_file(const std::string& path) {
  check_hash(path, read_comment(path));
  try {
    caffe2::serialize::PyTorchStreamReader reader(path);
    return read_archive(reader);
  } catch (const Error&) {
    throw;
  } catch (...) {
    fail_file(path, concat("can't be read by this LibTorch: ", core::current_error().what()));
  }
}

std::string to_bytes(const c10::IValue& content) {
  Text text;
  write_archive(text, content);
  return text.take();
}

c10::IValue from_bytes(const std::string& bytes) {
  std::istringstream stream(bytes);
  caffe2::serialize::PyTorchStreamReader reader(&stream);
  return read_archive(reader);
}

}  // namespace horon::torch_detail

// A file that LibTorch writes an archive to.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

namespace horon::torch_detail {

// LibTorch's own writer ends the process where a file can't be written, on a full disk say: its
// destructor writes once more, and throws while the first error is under way. So this class tells
// it that all was written, and finish() throws the error when the writer is gone. One thread.
class ArchiveFile {
 public:
  // Makes the file, or empties the one that is there.
  explicit ArchiveFile(const std::string& path);
  ~ArchiveFile();
  ArchiveFile(const ArchiveFile&) = delete;
  ArchiveFile& operator=(const ArchiveFile&) = delete;

  // For torch::save() and OutputArchive::save_to(), while this lives.
  std::function<size_t(const void*, size_t)> writer();
  // Closes it. Throws Error(OperationFailed), whose text is the system's, if opening, writing or
  // closing has failed.
  void finish();

 private:
  void write(const char* data, size_t bytes);
  void close();

  int file_;
  int error_ = 0;  // the first errno
};

}  // namespace horon::torch_detail

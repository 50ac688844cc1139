#include "horon/torch_bindings/guards/archive_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::torch_detail {

ArchiveFile::ArchiveFile(const std::string& path)
    : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)),
      error_(file_ < 0 ? errno : 0) {}

ArchiveFile::~ArchiveFile() { close(); }

std::function<size_t(const void*, size_t)> ArchiveFile::writer() {
  return [this](const void* data, size_t bytes) {
    write(static_cast<const char*>(data), bytes);
    return bytes;
  };
}

void ArchiveFile::finish() {
  close();
  if (error_ != 0) throw Error(ErrorCode::OperationFailed, std::strerror(error_));
}

void ArchiveFile::write(const char* data, size_t bytes) {
  while (error_ == 0 && bytes > 0) {
    const ssize_t written = ::write(file_, data, bytes);
    if (written >= 0) {
      data += written;
      bytes -= static_cast<size_t>(written);
    } else if (errno != EINTR) {
      error_ = errno;
    }
  }
}

void ArchiveFile::close() {
  const int file = std::exchange(file_, -1);
  if (file >= 0 && ::close(file) != 0 && error_ == 0) error_ = errno;
}

}  // namespace horon::torch_detail

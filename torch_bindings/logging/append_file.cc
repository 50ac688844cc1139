#include "horon/torch_bindings/logging/append_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::torch_detail {

AppendFile::AppendFile(const std::string& path, bool keep) : path_(path) {
  constexpr mode_t kReadable = 0644;
  const int emptied = keep ? 0 : O_TRUNC;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | emptied, kReadable);
  if (file_ < 0) fail();
}

AppendFile::~AppendFile() {
  if (file_ >= 0) ::close(file_);
}

AppendFile::AppendFile(AppendFile&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

AppendFile& AppendFile::operator=(AppendFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  return *this;
}

void AppendFile::fail() const {
  const char* const reason = std::strerror(errno);
  throw Error(ErrorCode::OperationFailed, core::concat("can't write ", path_, ": ", reason));
}

void AppendFile::append(std::string_view piece) {
  const size_t whole = piece.size();
  while (!piece.empty()) {
    const ssize_t written = ::write(file_, piece.data(), piece.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int reason = errno;
      take_back(whole - piece.size());
      errno = reason;
      fail();
    }
    piece.remove_prefix(static_cast<size_t>(written));
  }
}

void AppendFile::end_line() {
  struct stat facts {};
  if (::fstat(file_, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size == 0) return;
  const int reader = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (reader < 0) return;
  char last = '\n';
  const ssize_t count = ::pread(reader, &last, 1, facts.st_size - 1);
  ::close(reader);
  if (count == 1 && last != '\n') append("\n");
}

// Does nothing for a pipe or a terminal, which have no size.
void AppendFile::take_back(size_t bytes) const {
  const off_t end = ::lseek(file_, 0, SEEK_END);
  if (bytes == 0 || end < static_cast<off_t>(bytes)) return;
  (void)!::ftruncate(file_, end - static_cast<off_t>(bytes));
}

}  // namespace horon::torch_detail

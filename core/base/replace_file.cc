#include "horon/core/base/replace_file.h"

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <unistd.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

void require_done(bool done) {
  if (!done) throw Error(ErrorCode::OperationFailed, std::strerror(errno));
}

void bring_to_disk(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  require_done(file >= 0);
  const bool synced = ::fsync(file) == 0;
  const int reason = errno;
  ::close(file);
  errno = reason;
  require_done(synced);
}

}  // namespace

void replace_file(const std::string& path,
                  const std::function<void(const std::string& temporary)>& write) {
  // Beside the file, so that the rename stays within one file system. Not that of another thread,
  // which may replace the same file.
  static std::atomic<unsigned> number{0};
  const std::string temporary = concat(path, ".tmp", ::getpid(), ".", ++number);
  try {
    write(temporary);
    bring_to_disk(temporary);
    require_done(std::rename(temporary.c_str(), path.c_str()) == 0);
  } catch (...) {
    const Error error = current_error();
    ::unlink(temporary.c_str());
    throw Error(ErrorCode::OperationFailed, concat("can't write ", path, ": ", error.what()));
  }
}

void replace_file(const std::string& path, std::string_view content) {
  replace_file(path, [content](const std::string& temporary) {
    std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
    file.close();
    require_done(file.good());
  });
}

}  // namespace horon::core

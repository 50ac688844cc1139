#include "horon/core/base/replace_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <random>
#include <sys/stat.h>
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

// Brings the rename in the folder to the disk, so that what the caller does next, such as removing
// an older file, does not get there first. The file itself is there already, and some file systems
// can't do this, so failures are ignored.
void bring_folder_to_disk(const std::filesystem::path& folder) noexcept {
  const char* const path = folder.empty() ? "." : folder.c_str();
  const int file = ::open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0) return;
  (void)::fsync(file);
  ::close(file);
}

// Where the file is or will be: follows links, also one whose target is not there yet.
std::string followed(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kLinksMax = 40;  // as many as Linux follows
  fs::path place = path;
  for (int i = 0; fs::is_symlink(fs::symlink_status(place)); ++i) {
    if (i == kLinksMax) throw Error(ErrorCode::OperationFailed, std::strerror(ELOOP));
    place = place.parent_path() / fs::read_symlink(place);
  }
  return place;
}

// Whether a rename would put a file in the place of a device, a pipe or a socket.
bool is_no_file(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return false;
  if (S_ISDIR(found.st_mode)) throw Error(ErrorCode::OperationFailed, std::strerror(EISDIR));
  return !S_ISREG(found.st_mode);
}

// To be called in a catch block.
[[noreturn]] void throw_as_fault_of(const std::string& path) {
  throw Error(ErrorCode::OperationFailed,
              concat("can't write ", path, ": ", current_error().what()));
}

}  // namespace

// Random names: threads may replace the same file, and processes of other hosts and containers may
// have this process's number. Not by mkstemp(), whose files only their owner may read.
std::string make_file_beside(const std::string& path) {
  std::random_device random;
  for (;;) {
    std::string name = concat(path, ".tmp", random());
    const int file = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno == EEXIST) continue;
    require_done(file >= 0);
    ::close(file);
    return name;
  }
}

void replace_file(const std::string& path,
                  const std::function<void(const std::string& temporary)>& write) {
  std::string temporary;
  try {
    if (is_no_file(path)) return write(path);
    const std::string place = followed(path);
    temporary = make_file_beside(place);
    write(temporary);
    bring_to_disk(temporary);
    require_done(std::rename(temporary.c_str(), place.c_str()) == 0);
    bring_folder_to_disk(std::filesystem::path(place).parent_path());
  } catch (...) {
    if (!temporary.empty()) ::unlink(temporary.c_str());
    throw_as_fault_of(path);
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

void require_replaceable(const std::string& path) {
  try {
    if (is_no_file(path)) return;
    ::unlink(make_file_beside(followed(path)).c_str());
  } catch (...) {
    throw_as_fault_of(path);
  }
}

}  // namespace horon::core

#include "horon/core/host/named_file.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <dirent.h>
#include <fcntl.h>
#include <mutex>
#include <set>
#include <string_view>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/host/open_files.h"

namespace horon::core {
namespace {

constexpr const char* kFolder = "/dev/shm";
constexpr std::string_view kPrefix = "horon-";
constexpr size_t kDigits = 16;
// A job that begins with less would most likely run out of it. Docker gives 64 MiB.
constexpr uint64_t kBytesWanted = uint64_t{1} << 30;

// Of a fixed size, because files are renamed and removed where nothing may throw.
using Path = std::array<char, 32>;

Path path_of(uint64_t number) noexcept {
  Path path{};
  std::snprintf(path.data(), path.size(), "%s/%s%016llx", kFolder, kPrefix.data(),
                static_cast<unsigned long long>(number));
  return path;
}

// Files with other names are somebody else's, and left alone.
bool is_ours(std::string_view name) {
  const auto is_digit = [](unsigned char letter) { return std::isxdigit(letter) != 0; };
  return name.size() == kPrefix.size() + kDigits && name.starts_with(kPrefix) &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), is_digit);
}

// The files of this process that have names.
class OwnFiles {
 public:
  void add(uint64_t number) {
    const std::lock_guard lock(mutex_);
    if (process_ != getpid()) numbers_.clear();  // they are the parent's
    process_ = getpid();
    numbers_.insert(number);
  }
  void forget(uint64_t number) noexcept {
    const std::lock_guard lock(mutex_);
    numbers_.erase(number);
  }
  // False: the file has kept its name.
  bool renumber(uint64_t from, uint64_t to) noexcept {
    const std::lock_guard lock(mutex_);
    if (std::rename(path_of(from).data(), path_of(to).data()) != 0) return false;
    auto node = numbers_.extract(from);
    HORON_CHECK(!node.empty(), "what has a name is in the list");
    node.value() = to;
    numbers_.insert(std::move(node));
    return true;
  }
  void remove_all() noexcept {
    // A child of fork() leaves its parent's files. Checked before the lock, which another thread of
    // the parent may have held at the fork.
    if (process_ != getpid()) return;
    const std::lock_guard lock(mutex_);
    if (numbers_.empty()) return;
    for (const uint64_t number : numbers_) unlink(path_of(number).data());
    numbers_.clear();
    (void)remove_abandoned_files();  // a peer may have died, and no other process may come
  }

 private:
  std::atomic<pid_t> process_{0};  // whose numbers these are
  std::mutex mutex_;
  std::set<uint64_t> numbers_;
};

// Kept for ever: other threads may make some while the process exits.
OwnFiles& own_files() {
  static OwnFiles& files = *new OwnFiles;
  return files;
}

// Runs after all else at exit(), because until then peers may open the files.
[[gnu::destructor(101)]] void remove_own_files() { own_files().remove_all(); }

bool has_name(int descriptor) {
  struct stat status {};
  return fstat(descriptor, &status) == 0 && status.st_nlink > 0;
}

bool remove_if_abandoned(int folder, const char* name) noexcept {
  const int file = openat(folder, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0) return false;
  struct stat status {};
  // Under the lock no other process removes the file, and a maker keeps a file only if it has the
  // lock.
  const bool removed = fstat(file, &status) == 0 && S_ISREG(status.st_mode) &&
                       status.st_uid == geteuid() && flock(file, LOCK_EX | LOCK_NB) == 0 &&
                       has_name(file) && unlinkat(folder, name, 0) == 0;
  // A child that another thread forks now would have the file open too, and would keep the lock.
  (void)flock(file, LOCK_UN);
  close(file);
  return removed;
}

}  // namespace

std::string why_no_named_files() {
  struct statvfs space {};
  if (statvfs(kFolder, &space) != 0) return concat(kFolder, ": ", std::strerror(errno));
  const uint64_t left = uint64_t{space.f_bavail} * space.f_frsize;
  if (left >= kBytesWanted) return "";
  return concat(bytes_text(left), " are left in ", kFolder, ", but ", bytes_text(kBytesWanted),
                " are needed");
}

std::string path_of_named_file(uint64_t number) { return path_of(number).data(); }

int make_named_file(uint64_t number) {
  const std::string path = path_of_named_file(number);
  for (;;) {
    const int file = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) {
      const int error = errno;
      if (error == EMFILE) throw Error(ErrorCode::Limit, concat(path, ": ", too_many_open_files()));
      throw Error(ErrorCode::OperationFailed, concat("open ", path, ": ", std::strerror(error)));
    }
    int result = 0;
    do {
      result = flock(file, LOCK_EX);
    } while (result != 0 && errno == EINTR);
    const int error = errno;
    // Between the two calls another process may have taken it for an abandoned one.
    if (result == 0 && has_name(file)) {
      try {
        own_files().add(number);
        return file;
      } catch (...) {
        unlink(path.c_str());
        close(file);
        throw;
      }
    }
    close(file);
    if (result != 0) {
      unlink(path.c_str());
      throw Error(ErrorCode::OperationFailed, concat("flock ", path, ": ", std::strerror(error)));
    }
  }
}

bool renumber_named_file(uint64_t from, uint64_t to) noexcept {
  return own_files().renumber(from, to);
}

void remove_named_file(uint64_t number) noexcept {
  unlink(path_of(number).data());
  own_files().forget(number);
}

int remove_abandoned_files() noexcept {
  DIR* const folder = opendir(kFolder);
  if (folder == nullptr) return 0;
  int removed = 0;
  while (const dirent* const file = readdir(folder)) {
    if (is_ours(file->d_name) && remove_if_abandoned(dirfd(folder), file->d_name)) ++removed;
  }
  closedir(folder);
  return removed;
}

}  // namespace horon::core

#include "horon/core/host/shared_segment.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <optional>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/host/available_memory.h"
#include "horon/core/host/named_file.h"
#include "horon/core/host/open_files.h"

namespace horon::core {

namespace {

constexpr uint64_t kMagic = 0x314e4f524f48;
// Smaller segments are made without a check: reading how much memory is free costs more.
constexpr size_t kBytesWithoutLook = size_t{64} << 20;

struct Header {
  uint64_t magic;
  uint64_t generation;
};

// One page, so that data() begins at a page and its pages can be given back. Pages differ between
// machines: 4 KiB on x86-64, up to 64 KiB on ARM.
size_t header_bytes() {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

[[noreturn]] void fail(ErrorCode code, const std::string& what, int error) {
  throw Error(code, concat(what, ": ", std::strerror(error)));
}

[[noreturn]] void fail_to_open(const std::string& what, int error) {
  if (error != EMFILE) fail(ErrorCode::OperationFailed, what, error);
  throw Error(ErrorCode::Limit, concat(what, ": ", too_many_open_files()));
}

// The kernel kills processes rather than refuse memory, so a size that can't fit is refused here.
void require_memory(size_t bytes) {
  if (bytes <= kBytesWithoutLook) return;
  const AvailableMemory left = available_memory();
  if (bytes <= SharedSegment::kBytesMax && bytes <= left.bytes) return;
  throw Error(ErrorCode::Limit, concat("no memory for ", bytes_text(bytes), " of shared memory: ",
                                       bytes_text(left.bytes), " are available ", left.where));
}

// Random, so that no two segments of a host have the same one, whatever processes made them (forked
// ones too). nullopt: errno says why.
std::optional<uint64_t> new_generation() noexcept {
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, 0) != sizeof random) return std::nullopt;
  return random;
}

int make_memory_file() {
  const int descriptor = memfd_create("horon", MFD_CLOEXEC);
  if (descriptor < 0) fail_to_open("memfd_create", errno);
  return descriptor;
}

}  // namespace

SharedSegment SharedSegment::create(size_t bytes, Reach reach) {
  require_memory(bytes);
  const std::optional<uint64_t> generation = new_generation();
  if (!generation) fail(ErrorCode::OperationFailed, "getrandom", errno);
  SharedSegment segment;
  segment.process_ = getpid();
  segment.reach_ = reach;
  segment.bytes_ = bytes;
  segment.generation_ = *generation;
  segment.descriptor_ = reach == Reach::ByName ? make_named_file(*generation) : make_memory_file();
  segment.reserve();
  segment.map(segment.descriptor_, header_bytes() + bytes);
  segment.set_generation(*generation);
  return segment;
}

SharedSegment SharedSegment::open(Reach reach, pid_t owner, int descriptor, uint64_t generation) {
  const std::string path = reach == Reach::ByName ? path_of_named_file(generation)
                                                  : concat("/proc/", owner, "/fd/", descriptor);
  const int opened = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (opened < 0) fail_to_open(concat("open ", path), errno);
  SharedSegment segment;
  segment.process_ = getpid();
  segment.reach_ = reach;
  struct stat status {};
  if (fstat(opened, &status) != 0 || !S_ISREG(status.st_mode) ||
      static_cast<size_t>(status.st_size) < header_bytes()) {
    close(opened);
    throw Error(ErrorCode::OperationFailed, concat(path, " is not a piece of shared memory"));
  }
  segment.bytes_ = static_cast<size_t>(status.st_size) - header_bytes();
  try {
    segment.map(opened, static_cast<size_t>(status.st_size));
  } catch (...) {
    close(opened);
    throw;
  }
  close(opened);  // the mapping needs no descriptor
  Header header{};
  std::memcpy(&header, segment.mapping_, sizeof header);
  if (header.magic != kMagic || header.generation != generation) {
    throw Error(ErrorCode::OperationFailed, concat(path, " belongs to another process or is gone"));
  }
  segment.generation_ = generation;
  return segment;
}

// Takes the pages now: with fallocate a lack of memory is an error, at the first touch it would be
// a SIGBUS. A signal undoes a whole call, so it goes in pieces shorter than any timer's interval.
void SharedSegment::reserve() const {
  constexpr off_t kPieceBytes = off_t{1} << 20;
  const auto length = static_cast<off_t>(header_bytes() + bytes_);
  for (off_t begin = 0; begin < length; begin += kPieceBytes) {
    const off_t piece = std::min(kPieceBytes, length - begin);
    int error = 0;
    do {
      error = fallocate(descriptor_, 0, begin, piece) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0) continue;
    const std::string_view where =
        reach_ == Reach::ByName ? " in /dev/shm (HORON_SHARED_MEMORY=0 does without)" : "";
    fail(ErrorCode::Limit, concat(bytes_text(bytes_), " of shared memory", where), error);
  }
}

void SharedSegment::map(int descriptor, size_t mapped_bytes) {
  void* at =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, descriptor, 0);
  if (at == MAP_FAILED) {
    fail(errno == ENOMEM ? ErrorCode::Limit : ErrorCode::OperationFailed,
         concat("mmap of ", bytes_text(mapped_bytes)), errno);
  }
  mapping_ = static_cast<std::byte*>(at);
  madvise(at, mapped_bytes, MADV_DONTFORK);
}

// An MPI over RDMA keeps registrations of memory that it has sent from, by address. It notices
// pages that go by madvise(), and mappings that go, but not fallocate(). Peers map the segment anew
// once its generation has changed.
void SharedSegment::release_pages() noexcept {
  madvise(data(), bytes_, MADV_REMOVE);  // a failure only costs memory
}

bool SharedSegment::renew_generation() noexcept {
  const std::optional<uint64_t> generation = new_generation();
  if (!generation) return false;
  if (reach_ == Reach::ByName && !renumber_named_file(generation_, *generation)) return false;
  set_generation(*generation);
  return true;
}

void SharedSegment::set_generation(uint64_t generation) noexcept {
  generation_ = generation;
  const Header header = {kMagic, generation_};
  std::memcpy(mapping_, &header, sizeof header);
}

void SharedSegment::restore_pages() {
  require_memory(bytes_);
  reserve();
  std::memset(data(), 0, bytes_);
}

std::byte* SharedSegment::data() const {
  return mapping_ == nullptr ? nullptr : mapping_ + header_bytes();
}

SharedSegment::SharedSegment(SharedSegment&& other) noexcept { *this = std::move(other); }

SharedSegment& SharedSegment::operator=(SharedSegment&& other) noexcept {
  if (this == &other) return *this;
  reset();
  mapping_ = std::exchange(other.mapping_, nullptr);
  process_ = std::exchange(other.process_, 0);
  reach_ = other.reach_;
  bytes_ = std::exchange(other.bytes_, 0);
  descriptor_ = std::exchange(other.descriptor_, -1);
  generation_ = std::exchange(other.generation_, 0);
  return *this;
}

SharedSegment::~SharedSegment() { reset(); }

void SharedSegment::reset() noexcept {
  // After a fork something of the child's own may lie at this address, and the file is the
  // parent's.
  const bool is_own = process_ == getpid();
  if (mapping_ != nullptr && is_own) munmap(mapping_, header_bytes() + bytes_);
  if (descriptor_ >= 0) {
    if (reach_ == Reach::ByName && is_own) remove_named_file(generation_);
    close(descriptor_);
  }
  mapping_ = nullptr;
  descriptor_ = -1;
}

}  // namespace horon::core

#include "horon/core/host/mapped_group.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <sys/syscall.h>
#include <unistd.h>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/host/named_file.h"
#include "horon/core/host/process_memory.h"

namespace horon::core {
namespace {

// /proc/PID/exe is gone as soon as a process begins to exit: before its descriptors close, and
// before its pidfd reports it.
bool is_ending(int process_id) {
  const std::string program = concat("/proc/", process_id, "/exe");
  std::array<char, 1> start{};
  return readlink(program.c_str(), start.data(), start.size()) < 0 && errno == ENOENT;
}

}  // namespace

ProcessWatch::ProcessWatch(int process_id)
    : descriptor_(static_cast<int>(syscall(SYS_pidfd_open, process_id, 0))) {}

ProcessWatch::~ProcessWatch() {
  if (descriptor_ >= 0) close(descriptor_);
}

MappedGroup::MappedGroup(Parts parts) : parts_(std::move(parts)) {
  for (const Peer& peer : parts_.peers) polls_.push_back({peer.watch.descriptor(), POLLIN, 0});
}

// Removes the files of a peer that has died: it may take long until another process does.
MappedGroup::~MappedGroup() {
  if (parts_.reach == Reach::ByName) (void)remove_abandoned_files();
}

Doorbell& MappedGroup::doorbell(int local_rank) {
  HORON_CHECK(local_rank >= 0 && local_rank < local_size(), "local rank");
  return reinterpret_cast<Doorbell*>(parts_.home->data())[local_rank];
}

std::byte* MappedGroup::area() {
  return parts_.home->data() + sizeof(Doorbell) * parts_.peers.size();
}

std::byte* MappedGroup::map(int local_rank, const SharedAddress& address) {
  if (const auto& heap = peer(local_rank).heap; heap != nullptr) {
    std::byte* const found = heap->find(address);
    if (found != nullptr) return found;
    throw Error(ErrorCode::OperationFailed,
                concat("shared memory of ", name_of(local_rank), " is gone"));
  }
  SharedSegment& segment = mapped_[{local_rank, address.segment}];
  if (segment.data() == nullptr || segment.generation() != address.generation) {
    segment = SharedSegment();  // the descriptor is another segment's now
    segment = open_segment(local_rank, address);
  }
  HORON_CHECK(address.offset <= segment.bytes(), "the offset lies in the segment");
  return segment.data() + address.offset;
}

// Threads of one process copy by themselves, so that race detectors see it.
void MappedGroup::read(int local_rank, std::byte* to, uint64_t address, size_t bytes) {
  if (peer(local_rank).heap != nullptr) {
    return copy_bytes(to, reinterpret_cast<const std::byte*>(address), bytes);
  }
  require_copied(local_rank, read_process(process_id(local_rank), to, address, bytes));
}

void MappedGroup::write(int local_rank, uint64_t address, const std::byte* from, size_t bytes) {
  if (peer(local_rank).heap != nullptr) {
    return copy_bytes(reinterpret_cast<std::byte*>(address), from, bytes);
  }
  require_copied(local_rank, write_process(process_id(local_rank), address, from, bytes));
}

std::vector<int> MappedGroup::dead_local_ranks() {
  std::vector<int> dead;
  if (poll(polls_.data(), polls_.size(), 0) <= 0) return dead;
  for (size_t i = 0; i < polls_.size(); ++i) {
    if (polls_[i].revents != 0) dead.push_back(static_cast<int>(i));
  }
  return dead;
}

SharedSegment MappedGroup::open_segment(int local_rank, const SharedAddress& address) {
  try {
    return SharedSegment::open(parts_.reach, process_id(local_rank),
                               static_cast<int>(address.segment), address.generation);
  } catch (const Error&) {
    if (!has_died(local_rank)) throw;
  }
  throw_dead(local_rank);
}

void MappedGroup::require_copied(int local_rank, int error) {
  if (error == 0) return;
  if (error == ESRCH || has_died(local_rank)) throw_dead(local_rank);
  throw Error(ErrorCode::OperationFailed,
              concat("memory of ", name_of(local_rank), " can't be copied: ", std::strerror(error),
                     "; set HORON_CMA=off to copy it by way of shared memory"));
}

void MappedGroup::throw_dead(int local_rank) const {
  throw Error(ErrorCode::PeerDead, concat(name_of(local_rank), " has died"));
}

std::string MappedGroup::name_of(int local_rank) const {
  return name_of_process(parts_.ranks.at(static_cast<size_t>(local_rank)), process_id(local_rank));
}

bool MappedGroup::has_died(int local_rank) {
  // By name: the peer's files go before the kernel tells that it has ended, and is_ending() may not
  // be allowed to look into it. So this waits a little.
  constexpr int kEndsWithinMs = 1000;
  pollfd watched = polls_.at(static_cast<size_t>(local_rank));
  if (poll(&watched, 1, parts_.reach == Reach::ByName ? kEndsWithinMs : 0) > 0) return true;
  return is_ending(process_id(local_rank));
}

}  // namespace horon::core

#include "horon/core/host/process_memory.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <unistd.h>

#include "horon/core/base/text.h"

namespace horon::core {
namespace {

// Calls `copy(bytes done so far)`, which copies some of the rest, until all is copied.
template <class Copy>
int copy_all(size_t bytes, const Copy& copy) noexcept {
  for (size_t done = 0; done < bytes;) {
    const ssize_t copied = copy(done);
    if (copied < 0) return errno;
    if (copied == 0) return EFAULT;
    done += static_cast<size_t>(copied);
  }
  return 0;
}

uint64_t random_token() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) + 1;
}

uint64_t address_of(const void* data) { return reinterpret_cast<uint64_t>(data); }

}  // namespace

int read_process(int process_id, std::byte* to, uint64_t address, size_t bytes) noexcept {
  return copy_all(bytes, [&](size_t done) {
    const iovec here{to + done, bytes - done};
    const iovec there{reinterpret_cast<void*>(address + done), bytes - done};
    return process_vm_readv(process_id, &here, 1, &there, 1, 0);
  });
}

int write_process(int process_id, uint64_t address, const std::byte* from, size_t bytes) noexcept {
  return copy_all(bytes, [&](size_t done) {
    const iovec here{const_cast<std::byte*>(from) + done, bytes - done};
    const iovec there{reinterpret_cast<void*>(address + done), bytes - done};
    return process_vm_writev(process_id, &here, 1, &there, 1, 0);
  });
}

bool is_reachable(const std::byte* data, size_t bytes) noexcept {
  const std::span<const std::byte> range(data, bytes);
  return are_reachable({&range, 1});
}

bool are_reachable(std::span<const std::span<const std::byte>> ranges) noexcept {
  std::array<iovec, 512> ends;  // a call takes 1024 at most
  std::array<std::byte, ends.size()> copies;
  for (size_t next = 0; next < ranges.size();) {
    size_t count = 0;
    for (; next < ranges.size() && count < ends.size(); ++next) {
      if (ranges[next].empty()) continue;
      ends[count++] = {const_cast<std::byte*>(&ranges[next].front()), 1};
      ends[count++] = {const_cast<std::byte*>(&ranges[next].back()), 1};
    }
    if (count == 0) break;
    const iovec here{copies.data(), count};
    const ssize_t copied = process_vm_readv(getpid(), &here, 1, ends.data(), count, 0);
    if (copied != static_cast<ssize_t>(count)) return false;
  }
  return true;
}

void allow_process_copies() noexcept {
  const int file = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
  char scope = '0';
  if (file < 0) return;
  const bool known = ::read(file, &scope, 1) == 1;
  close(file);
  if (known && scope == '1') (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

ProcessProbe::ProcessProbe(int ranks)
    : token_(random_token()), answers_(static_cast<size_t>(ranks)) {}

ProcessProbe::Offer ProcessProbe::offer() const {
  return {token_, address_of(&token_), address_of(answers_.data())};
}

std::string ProcessProbe::try_copies(int process_id, const Offer& peer, int rank) const {
  const auto failed = [process_id](const char* call, int error) {
    return concat(call, " of process ", process_id, ": ", std::strerror(error));
  };
  uint64_t token = 0;
  auto* const seen = reinterpret_cast<std::byte*>(&token);
  if (const int error = read_process(process_id, seen, peer.token_address, sizeof(token))) {
    return failed("process_vm_readv", error);
  }
  if (token != peer.token) return concat("process ", process_id, " is a different process here");
  const uint64_t answer = peer.answers_address + static_cast<uint64_t>(rank) * sizeof(token_);
  const auto* const mine = reinterpret_cast<const std::byte*>(&token_);
  if (const int error = write_process(process_id, answer, mine, sizeof(token_))) {
    return failed("process_vm_writev", error);
  }
  if (const int error = read_process(process_id, seen, answer, sizeof(token))) {
    return failed("process_vm_readv", error);
  }
  return token == token_ ? "" : concat("process_vm_writev of process ", process_id, " lost a word");
}

}  // namespace horon::core

// Ranks as forked processes of a test program, without MPI: for tests in which one of them dies or
// may do less.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <new>
#include <span>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "horon/core/host/local_group.h"

namespace horon::core {

// A barrier and an allgather in memory that the ranks share by inheritance. Make it before they are
// started.
class ProcessExchange {
 public:
  explicit ProcessExchange(int size) : size_(size) {
    void* const memory =
        mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    state_ = memory == MAP_FAILED ? nullptr : new (memory) State;
  }
  ~ProcessExchange() {
    if (state_ != nullptr) munmap(state_, sizeof(State));
  }
  ProcessExchange(const ProcessExchange&) = delete;
  ProcessExchange& operator=(const ProcessExchange&) = delete;

  void barrier() {
    const int turn = state_->turn.load();
    if (state_->arrived.fetch_add(1) + 1 == size_) {
      state_->arrived = 0;
      state_->turn = turn + 1;
      return;
    }
    while (state_->turn.load() == turn) std::this_thread::yield();
  }

  LocalGroup::Exchange of(int rank) {
    return [this, rank](std::span<const std::byte> mine) {
      std::memcpy(state_->blocks[static_cast<size_t>(rank)].data(), mine.data(), mine.size());
      barrier();
      std::vector<std::byte> all;
      for (int i = 0; i < size_; ++i) {
        const std::byte* const block = state_->blocks[static_cast<size_t>(i)].data();
        all.insert(all.end(), block, block + mine.size());
      }
      barrier();
      return all;
    };
  }

 private:
  struct State {
    std::atomic<int> arrived{0};
    std::atomic<int> turn{0};
    std::array<std::array<std::byte, 4096>, 8> blocks{};
  };
  const int size_;
  State* state_ = nullptr;
};

// Runs body(rank) in `size` child processes and returns how each ended, as waitpid() tells: 0 if
// body returned true.
inline std::vector<int> run_processes(int size, const std::function<bool(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(40);  // a test that hangs must not leave processes behind
      bool well = false;
      try {
        well = body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      _exit(well ? 0 : 1);
    }
    children.push_back(child);
  }
  std::vector<int> ends;
  for (const pid_t child : children) {
    int status = -1;
    waitpid(child, &status, 0);
    ends.push_back(status);
  }
  return ends;
}

}  // namespace horon::core

// Ranks as forked processes of a test program, without MPI: for tests in which a rank dies or has
// fewer permissions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/tests/support/shared_with_children.h"

namespace horon::core {

// The bootstrap of ranks that are processes of one host. They exchange texts in memory that they
// inherit, so make this object before they are started.
class ProcessJob {
 public:
  explicit ProcessJob(int size) : size_(size) {
    const std::vector<int> host_key_of(static_cast<size_t>(size), 0);
    for (int rank = 0; rank < size; ++rank) {
      ranks_.push_back(std::make_unique<Rank>(*this, make_topology(rank, host_key_of)));
    }
  }
  ProcessJob(const ProcessJob&) = delete;
  ProcessJob& operator=(const ProcessJob&) = delete;

  void barrier() {
    const int turn = state_->turn.load();
    if (state_->arrived.fetch_add(1) + 1 == size_) {
      state_->arrived = 0;
      state_->turn = turn + 1;
      return;
    }
    while (state_->turn.load() == turn) std::this_thread::yield();
  }

  const Bootstrap& of(int rank) const { return *ranks_.at(static_cast<size_t>(rank)); }

 private:
  struct Block {
    size_t length = 0;
    std::array<char, 4096> bytes{};
  };
  struct State {
    std::atomic<int> arrived{0};
    std::atomic<int> turn{0};
    std::array<Block, 8> blocks;
  };
  class Rank final : public Bootstrap {
   public:
    Rank(ProcessJob& job, Topology topology) : job_(job), topology_(std::move(topology)) {}
    const Topology& topology() const override { return topology_; }
    std::vector<std::string> allgather(Among, std::string_view mine) const override {
      Block& block = job_.state_->blocks.at(static_cast<size_t>(topology_.rank));
      block.length = mine.copy(block.bytes.data(), block.bytes.size());
      job_.barrier();
      std::vector<std::string> all;
      for (size_t rank = 0; rank < static_cast<size_t>(topology_.size); ++rank) {
        const Block& other = job_.state_->blocks.at(rank);
        all.emplace_back(other.bytes.data(), other.length);
      }
      job_.barrier();
      return all;
    }

   private:
    ProcessJob& job_;
    const Topology topology_;
  };

  const int size_;
  const SharedWithChildren<State> state_;
  std::vector<std::unique_ptr<Bootstrap>> ranks_;
};

// Runs body(rank) in `size` child processes and returns the status of each, as waitpid() gives it:
// 0 if body returned true.
inline std::vector<int> run_processes(int size, const std::function<bool(int)>& body) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(200);  // a test that hangs must not leave processes behind
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

// Runs `body` in a child process and returns its status, as waitpid() gives it.
inline int end_of_child(const std::function<void()>& body) {
  return run_processes(1,
                       [&](int) {
                         body();
                         return true;
                       })
      .front();
}

}  // namespace horon::core

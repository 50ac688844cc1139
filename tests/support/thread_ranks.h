// Ranks as threads of a test program.
#pragma once

#include <barrier>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "horon/core/bootstrap/topology.h"
#include "horon/core/host/local_group.h"

namespace horon::core {

// Runs body(rank) on `size` threads and waits for all; the first exception is rethrown.
inline void run_ranks(int size, const std::function<void(int)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          body(rank);
        } catch (...) {
          errors[static_cast<size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// The allgather among threads that LocalGroup::create() wants. One object for all ranks.
class ThreadExchange {
 public:
  explicit ThreadExchange(int size) : blocks_(static_cast<size_t>(size)), barrier_(size) {}

  LocalGroup::Exchange of(int rank) {
    return [this, rank](std::span<const std::byte> mine) {
      blocks_[static_cast<size_t>(rank)].assign(mine.begin(), mine.end());
      barrier_.arrive_and_wait();
      std::vector<std::byte> all;
      for (const auto& block : blocks_) all.insert(all.end(), block.begin(), block.end());
      barrier_.arrive_and_wait();
      return all;
    };
  }

 private:
  std::vector<std::vector<std::byte>> blocks_;
  std::barrier<> barrier_;
};

// One host with `size` ranks.
inline Topology one_host_topology(int rank, int size) {
  return make_topology(rank, std::vector<int>(static_cast<size_t>(size), 0));
}

}  // namespace horon::core

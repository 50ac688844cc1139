// Ranks as threads of a test program.
#pragma once

#include <cstddef>
#include <exception>
#include <functional>
#include <thread>
#include <vector>

#include "horon/core/bootstrap/in_process_bootstrap.h"
#include "horon/core/bootstrap/topology.h"

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

// One host with `size` ranks.
inline Topology one_host_topology(int rank, int size) {
  return make_topology(rank, std::vector<int>(static_cast<size_t>(size), 0));
}

}  // namespace horon::core

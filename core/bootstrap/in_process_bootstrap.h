// A job whose ranks are threads of one process: for tests.
#pragma once

#include <barrier>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"

namespace horon::core {

// One object for all ranks; each thread uses the Bootstrap of its own rank. Must outlive them.
class InProcessJob {
 public:
  // All ranks on one host.
  explicit InProcessJob(int size);
  // One number for each rank, equal for ranks of the same host and different else.
  explicit InProcessJob(const std::vector<int>& host_key_of);

  const Bootstrap& of(int rank) const { return *ranks_.at(static_cast<size_t>(rank)); }

 private:
  // Where the ranks of one host, or of the whole job, meet.
  struct Meeting {
    explicit Meeting(size_t size) : blocks(size), barrier(static_cast<ptrdiff_t>(size)) {}
    std::vector<std::string> blocks;
    std::barrier<> barrier;
  };
  class Rank;

  Meeting job_;
  std::vector<std::unique_ptr<Meeting>> hosts_;
  std::vector<std::unique_ptr<Bootstrap>> ranks_;
};

}  // namespace horon::core

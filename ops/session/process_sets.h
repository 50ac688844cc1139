// The process sets of a job: how they come and go.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/bootstrap/mpi_bootstrap.h"
#include "horon/core/runtime/runtime.h"
#include "horon/ops/mpi/mpi_communicator.h"
#include "horon/ops/session/process_set.h"

namespace horon::ops {

// All ranks of a list, exactly: two texts are the same if and only if the lists are. Long lists are
// told as runs: "0 to 62 by 2, 64 to 127".
std::string exact_list(const std::vector<int>& ranks);

// All ranks call add() and remove() in the same order. Any thread, one call after the other.
class ProcessSets {
 public:
  // All must outlive the sets. The runtime is told by set_runtime(), since it is made with
  // make_resources().
  ProcessSets(core::MpiLibrary& library, const core::MpiBootstrap& bootstrap,
              const core::Config& config);
  void set_runtime(core::Runtime& runtime) { runtime_ = &runtime; }

  // See horon::add_process_set() and its siblings.
  ProcessSet add(std::vector<int> ranks);
  void remove(const ProcessSet& set);
  std::vector<ProcessSet> all();

  // core::Runtime::Parts::make_set: on the runtime thread, during an add().
  core::SetResources make_resources(const std::vector<int>& ranks);

 private:
  void refuse_wrong_ranks(const std::vector<int>& ranks);
  void make_communicator(const std::vector<int>& ranks);

  core::MpiLibrary& library_;
  const core::MpiBootstrap& bootstrap_;
  const core::Topology topology_;
  const core::Config& config_;
  core::Runtime* runtime_ = nullptr;
  std::mutex mutex_;
  uint32_t calls_ = 0;  // of add(): the number of the newest set
  std::vector<ProcessSet> sets_;
  std::unique_ptr<MpiCommunicator> prepared_;  // for the next make_resources()
};

}  // namespace horon::ops

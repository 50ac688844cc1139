// The process sets of a job: how they come and go.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "horon/core/base/config.h"
#include "horon/core/execution/executor.h"
#include "horon/core/runtime/runtime.h"
#include "horon/ops/communicator/communicator_maker.h"
#include "horon/ops/nccl/job_gpu.h"
#include "horon/ops/session/process_set.h"

namespace horon::ops {

// All ranks of a list, exactly: two texts are the same if and only if the lists are. Long lists are
// told as runs: "0 to 62 by 2, 64 to 127".
std::string exact_list(const std::vector<int>& ranks);

// All ranks call add() and remove() in the same order; add_among(), and remove() of such a set, are
// calls of its members. Any thread, one call after the other; leave() is a call of one member.
class ProcessSets {
 public:
  struct Parts {
    const CommunicatorMaker* maker = nullptr;
    const Communicator* world = nullptr;
    const core::Config* config = nullptr;
    std::shared_ptr<core::Timeline> timeline;  // may be null
    std::shared_ptr<JobGpu> gpu = nullptr;     // may be null
    uint32_t session = 0;                      // see ops::session_number()
  };
  // Maker and world are used until close(); the config must outlive the sets. set_runtime() follows
  // later, because making the runtime needs make_resources().
  explicit ProcessSets(Parts parts);
  void set_runtime(core::Runtime& runtime) { runtime_ = &runtime; }

  // See horon::add_process_set() and its siblings.
  ProcessSet add(std::vector<int> ranks);
  ProcessSet add_among(std::vector<int> ranks, uint32_t number);
  void order_on_gpus();
  void remove(const ProcessSet& set);
  void leave(const ProcessSet& set);    // waits for nobody, also not for a call of another thread
  std::vector<ProcessSet> all() const;  // never waits for an add() or a remove()
  // OpTable::explain() of a set of which this rank is a member. Throws Error(InvalidArgument).
  std::vector<std::string> explain(const ProcessSet& set, const core::BatchFacts& facts) const;

  // From now on calls are refused with Error(NotInitialized). True if another thread is making a
  // set and may be in MPI for it: then its call fails, and perhaps gives MPI up.
  bool refuse_calls() noexcept;
  // After the runtime has shut down: refuses further calls with Error(NotInitialized), and waits
  // until another thread's call, whose waits the runtime has ended, has returned. False if it has
  // not returned in time: then it may still use maker and world.
  bool close();

  // core::Runtime::Parts::make_set: on the thread that steps the loop, during an add().
  core::SetResources make_resources();

 private:
  // What add() hands to make_resources().
  struct Prepared {
    uint32_t id = 0;
    std::shared_ptr<Communicator> communicator;
    std::shared_ptr<JobGpu> gpu;                     // null: it takes no tensors of GPUs
    std::string no_gpus;                             // why it takes none
    std::optional<core::Executor::Parts> execution;  // empty until the communicator is connected
  };
  struct Known {
    ProcessSet set;
    std::shared_ptr<const core::LentOps> ops;  // of this rank, as a member; else null
  };

  void refuse_if_closed() const;
  // What is wrong with these ranks; empty if nothing is.
  std::string fault_of_ranks(const std::vector<int>& ranks) const;
  // Collective over the ranks of `talk`. `call`: for messages. `no_gpus`: of a set on GPUs, why
  // not; empty if it can be.
  Prepared prepare(const core::Bootstrap& talk, const std::string& call, uint32_t id,
                   const std::vector<int>& ranks, std::string no_gpus);
  // The same, for a caller who sees to it that no rank is left alone with MPI.
  Prepared try_to_prepare(const core::Bootstrap& talk, const std::string& call, uint32_t id,
                          const std::vector<int>& ranks, std::string no_gpus);
  // Adds the set, now made, to the sets that this rank knows.
  ProcessSet note(uint32_t id, std::vector<int> ranks);
  void require_known(const ProcessSet& set, const char* call) const;

  const Parts parts_;
  core::Runtime* runtime_ = nullptr;
  std::atomic<bool> closed_{false};
  std::atomic<bool> making_{false};  // a thread makes a set: it may be in MPI
  std::mutex calls_mutex_;           // held during add() and remove(), which wait for other ranks
  uint32_t calls_ = 0;               // of add(): the number of the newest set
  std::set<uint32_t> numbers_;       // of add_among()
  Prepared prepared_;
  std::shared_ptr<const core::LentOps> newest_ops_;
  mutable std::mutex sets_mutex_;  // held for moments only
  std::vector<Known> sets_;
};

}  // namespace horon::ops

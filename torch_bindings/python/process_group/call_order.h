// The collectives of a process group have no names, only an order, which is the same on all ranks.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/python/process_group/operation.h"

namespace horon::python::process_group {

// Each call gets the next of a few names, which come again and again: so the n-th call of one rank
// meets the n-th of the others whatever its kind and shape are, ranks that differ get a Mismatch at
// once, and what repeats starts without negotiation. Any thread of the program; threads get names
// in the order of their calls.
class CallOrder {
 public:
  // `group`: what names begin with.
  CallOrder(const std::string& group, ProcessSet set);

  struct Start {
    CollectiveKind kind = CollectiveKind::Allreduce;
    bool grouped = false;  // several tensors, as one
  };
  // Adds a collective to the operation; `fill` adds the tensors and what is particular. Waits while
  // the name's last call is still on its way, until the operation's deadline: then it throws
  // Error(Timeout), and this is no call.
  void start(Operation& operation, const Start& what,
             const std::function<void(torch_detail::PendingCollective&)>& fill);
  // The same for an operation of several collectives, with one name each. It waits for all names
  // (of more than kNames: for these) before the first collective, so that all begin or none: a rank
  // that began some of them would stay out of step. If one is refused, the others begin all the
  // same, and then the first error is thrown.
  void start_all(Operation& operation, const Start& what, size_t collectives,
                 const std::function<void(torch_detail::PendingCollective&, size_t)>& fill);
  // How many calls there have been. Waits for nobody: a message, which asks this too, may be what
  // ends another thread's wait in start().
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  // More would be on their way at the same time, but each must be negotiated before it is known.
  static constexpr size_t kNames = 32;

  void wait_for_name(const Operation& operation, size_t number) const;
  void start_next(Operation& operation, const Start& what,
                  const std::function<void(torch_detail::PendingCollective&)>& fill);

  const ProcessSet set_;
  std::array<std::string, kNames> names_;
  std::mutex mutex_;
  std::atomic<uint64_t> count_{0};  // changes under the mutex
  std::array<std::weak_ptr<torch_detail::PendingCollective>, kNames> last_;  // of each name
};

}  // namespace horon::python::process_group

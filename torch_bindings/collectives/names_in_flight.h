// The names that the program has given to asynchronous calls which have not ended, so that the next
// call learns at once that its name is taken. The negotiation finds that out as well, but can
// report it only to whoever waits for the second call.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "horon/core/runtime/handle.h"

namespace horon::torch_detail {

// A call, as long as somebody needs it. `handle` is null until it has been submitted.
struct NamedCall {
  std::atomic<const core::HandleState*> handle{nullptr};
};

// Any thread.
class NamesInFlight {
 public:
  // Call it before submitting: work between submit() and wait() would delay the ranks. The name is
  // free again when the handle has finished or the call is gone. Throws Error(DuplicateName).
  void take(uint32_t set, const std::string& name, const std::shared_ptr<NamedCall>& call);
  // The same for names that Horon has counted, which come again: waits until the name is free.
  void take_in_turn(uint32_t set, const std::string& name, const std::shared_ptr<NamedCall>& call);
  // For other uses of such a name: by a call that blocks, by a refusal.
  void wait_until_free(uint32_t set, const std::string& name);
  // Whether any call has had a counted name: it may be in flight still.
  bool has_counted() const { return has_counted_.load(std::memory_order_relaxed); }

 private:
  // Returns the call that has the name; null: the name was free, and `call` has it now.
  std::shared_ptr<NamedCall> try_take(uint32_t set, const std::string& name,
                                      const std::shared_ptr<NamedCall>& call);

  static constexpr size_t kSweepMin = 1024;

  std::atomic<bool> has_counted_{false};
  std::mutex mutex_;
  std::unordered_map<std::string, std::weak_ptr<NamedCall>> calls_;
  size_t next_sweep_ = kSweepMin;  // entries at which those of calls that have ended are removed
};

// Of this process.
NamesInFlight& names_in_flight();

}  // namespace horon::torch_detail

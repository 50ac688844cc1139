// The ops of a process set, lent to threads of the program, which ask them what they can run. Only
// the loop destroys them, since that may call MPI or a device.
#pragma once

#include <chrono>
#include <mutex>
#include <thread>

#include "horon/core/execution/op_table.h"

namespace horon::core {

// Any thread.
class LentOps {
 public:
  explicit LentOps(const OpTable& ops) : ops_(&ops) {}

  // Calls ask(ops), which must not call this object again. False: the ops have ended.
  template <class Ask>
  bool ask(const Ask& ask) const {
    const std::lock_guard lock(mutex_);
    if (ops_ == nullptr) return false;
    ask(*ops_);
    return true;
  }

  // Call it before the ops are destroyed: waits for threads that are asking. False if one does not
  // come back, because it has called exit() in a signal handler: then the ops must stay for ever.
  bool end() noexcept {
    using namespace std::chrono_literals;
    const auto limit = std::chrono::steady_clock::now() + 1s;  // an answer takes microseconds
    while (!mutex_.try_lock()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      std::this_thread::sleep_for(1ms);
    }
    const std::lock_guard lock(mutex_, std::adopt_lock);
    ops_ = nullptr;
    return true;
  }

 private:
  mutable std::mutex mutex_;
  const OpTable* ops_;  // null: they have ended
};

}  // namespace horon::core

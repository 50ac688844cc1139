// What earlier batches of a set have yet to do, and no later batch may do before them.
#pragma once

#include <algorithm>
#include <vector>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/memory_domain.h"

namespace horon::core {

// Made anew in each pass over the batches, in the order of the log. One thread at a time.
class Predecessors {
 public:
  void clear() {
    unfinished_in_.clear();
    if (!any_) return;
    any_ = false;
    one_keeps_log_order_ = false;
    need_scratch_.clear();
    keep_own_order_.clear();
  }
  // Notes one earlier batch, which works in `domain` (null: in none) and may still want scratch
  // there. `unstarted`: its op, or null if it has started.
  void add(const MemoryDomain* domain, bool needs_scratch, const CollectiveOp* unstarted) {
    if (domain != nullptr && is_oldest_in(*domain)) unfinished_in_.push_back(domain);
    any_ = any_ || needs_scratch || unstarted != nullptr;
    if (needs_scratch) need_scratch_.push_back(domain);
    if (unstarted == nullptr) return;
    const StartOrder order = order_of(*unstarted);
    if (order == StartOrder::Log) one_keeps_log_order_ = true;
    if (order == StartOrder::Op) keep_own_order_.push_back(&unstarted->owner_of_order());
  }

  // Every earlier batch in this domain has finished. The scratch of a domain is given out in the
  // order of the log, and the oldest unfinished batch in it may exceed the limit. The batch that is
  // oldest over all ranks is the oldest on each rank that has not finished it, so it always goes
  // on: little scratch cannot cause a deadlock.
  bool is_oldest_in(const MemoryDomain& domain) const {
    return std::find(unfinished_in_.begin(), unfinished_in_.end(), &domain) == unfinished_in_.end();
  }
  bool may_take_scratch(const MemoryDomain& domain) const {
    return std::find(need_scratch_.begin(), need_scratch_.end(), &domain) == need_scratch_.end();
  }
  bool may_start(const CollectiveOp& op) const {
    if (!any_) return true;
    switch (order_of(op)) {
      case StartOrder::Log:
        return !one_keeps_log_order_;
      case StartOrder::Op:
        return std::find(keep_own_order_.begin(), keep_own_order_.end(), &op.owner_of_order()) ==
               keep_own_order_.end();
      case StartOrder::Any:
        break;
    }
    return true;
  }

 private:
  // An op that enqueues must keep the order of the log, whatever it says: its kernels run in the
  // order of the queue, and each of them waits for its peers.
  static StartOrder order_of(const CollectiveOp& op) {
    return op.enqueues() ? StartOrder::Log : op.start_order();
  }

  std::vector<const MemoryDomain*> unfinished_in_;  // each once
  bool any_ = false;                                // of the next three
  bool one_keeps_log_order_ = false;
  std::vector<const MemoryDomain*> need_scratch_;
  std::vector<const CollectiveOp*> keep_own_order_;
};

}  // namespace horon::core

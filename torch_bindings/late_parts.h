// Gradients that came after their bucket had been submitted: the ranks agree which there are, and
// reduce them one by one.
//
// A rank can't know of the late parts of others. So every step carries one small allreduce that
// says how many there are anywhere; it runs beside the last buckets. Only if there are some, a
// second one says which, and then each is reduced with zeros where a rank has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/base/entry_spec.h"
#include "horon/core/runtime/handle.h"
#include "horon/torch_bindings/gradient_slot.h"

namespace horon::torch_detail {

class LateParts {
 public:
  // `plan` describes the buckets in words: ranks whose plans differ learn so from the first
  // allreduce of a step, as Error(Mismatch) that shows both.
  LateParts(std::string reducer_name, const std::string& plan, ReduceOp op);

  // These three in this order, once a step, on every rank. All throw Error.
  void announce(const std::deque<GradientSlot>& slots);
  void agree(const std::deque<GradientSlot>& slots);
  void wait();

  // The verdict on one slot, after agree() and wait().
  bool discarded(size_t slot) const;
  // Some rank's program has dropped what another's still counts on: there is no right result.
  bool disputed(size_t slot) const;
  at::Tensor reduced(size_t slot) const;  // undefined if no rank had a late part

 private:
  struct Reduction {
    size_t slot = 0;
    at::Tensor memory;
    std::shared_ptr<core::HandleState> handle;
  };

  void submit(size_t index, const GradientSlot& slot);

  std::string name_;
  ReduceOp op_;
  std::shared_ptr<const core::EntrySpec> count_spec_;
  std::shared_ptr<int64_t> count_;
  std::shared_ptr<core::HandleState> count_handle_;
  bool any(size_t slot, size_t flag) const;

  // Three bytes for each slot: a late part exists; what the bucket holds is discarded; counts.
  std::shared_ptr<std::vector<uint8_t>> flags_;
  std::vector<Reduction> reductions_;  // ascending slots
};

// Waits, and throws the error that the handle holds, if any.
const core::Outcome& finish(const std::shared_ptr<core::HandleState>& handle);

}  // namespace horon::torch_detail

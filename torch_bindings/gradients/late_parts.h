// Gradients that came after their bucket had been submitted, or that stay sparse: the ranks agree
// which there are, and reduce them one by one.
//
// A rank can't know of the late parts of others. So a rank that has some asks for an agreement
// (round_agreement.h), which says how many there are anywhere. Only if there are some, a second one
// says which, and then each is reduced with zeros where a rank has none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/core/runtime/handle.h"
#include "horon/torch_bindings/collectives/sparse_reduction.h"
#include "horon/torch_bindings/gradients/settings.h"
#include "horon/torch_bindings/gradients/slot.h"

namespace horon::torch_detail {

class LateParts {
 public:
  // The settings outlive it.
  LateParts(std::string reducer_name, const GradientSettings& settings);

  // Ends a round: keeps nothing of it, which may be as large as the gradients.
  void clear();
  // No rank has anything in this round.
  bool empty() const { return flags_ == nullptr; }
  // What this rank has for this round.
  static int64_t count(const std::deque<GradientSlot>& slots);

  // These two in this order, on every rank, in a round where some rank has something. Both are
  // collective and throw Error. `scale`: what the results are multiplied by (of a weighted
  // average).
  void agree(const std::deque<GradientSlot>& slots);
  void wait(double scale);

  // The verdict on one slot, after agree() and wait().
  bool discarded(size_t slot) const;
  // The program has dropped the gradient on some ranks and uses it on others: no result is right.
  bool disputed(size_t slot) const;
  // Undefined if no rank had a late part; sparse if all were.
  at::Tensor reduced(size_t slot) const;
  // Its reduction has failed.
  bool failed(size_t slot) const;

 private:
  struct Reduction {
    size_t slot = 0;
    at::Tensor memory;  // the result in the end
    std::shared_ptr<core::HandleState> handle;
    std::optional<SparseReduction> sparse;
    bool done = false;
  };

  void submit(size_t index, const GradientSlot& slot);
  // Refuses the collectives of these names if the values are not finite.
  void check_finite(std::initializer_list<std::string_view> name_endings, const std::string& name,
                    const GradientSlot& slot, const at::Tensor& values) const;
  const Reduction* find(size_t slot) const;
  uint8_t any(size_t slot, size_t flag) const;

  std::string name_;
  const GradientSettings& settings_;
  // For each slot: a late part exists; what the bucket holds is discarded; counts; sparse
  // dimensions of a sparse gradient.
  std::shared_ptr<std::vector<uint8_t>> flags_;
  std::vector<Reduction> reductions_;  // ascending slots
};

}  // namespace horon::torch_detail

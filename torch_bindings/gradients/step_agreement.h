// What the ranks tell each other at the end of every step, in one small allreduce beside the last
// buckets: whether their plans are alike, and what a rank can't know of the others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/runtime/handle.h"
#include "horon/torch_bindings/gradients/settings.h"

namespace horon::torch_detail {

// Of one rank.
struct StepFacts {
  int64_t late = 0;  // gradients that are to be reduced apart from the buckets
  bool early = false;
  std::optional<double> weight;
};

// Of all ranks that have not joined.
struct StepTotals {
  int participants = 1;
  int64_t late = 0;
  int early = 0;
  int weighted = 0;  // ranks that gave a weight
  double weight = 0;
};

class StepAgreement {
 public:
  // `plan` describes the buckets in words: ranks whose plans differ learn so from the first step,
  // as Error(Mismatch) that shows both.
  StepAgreement(const std::string& reducer_name, const std::string& plan,
                const GradientSettings& settings);

  // These two in this order, once a step, on every rank. Throw Error.
  void announce(const StepFacts& facts);
  StepTotals agree();

  // "ranks 1 and 3", for an error text: those that say so. Collective.
  std::string ranks_that(bool say_so) const;

 private:
  std::string name_;
  uint32_t set_;
  std::vector<int> ranks_;
  int set_rank_;
  std::shared_ptr<const core::EntrySpec> spec_;
  std::shared_ptr<std::vector<double>> numbers_;
  std::shared_ptr<core::HandleState> handle_;
};

std::shared_ptr<const core::EntrySpec> flat_spec(core::EntrySpec spec, std::string part,
                                                 std::vector<int64_t> shape);
// An allreduce without an op of gradients: of numbers.
core::EntrySpec number_spec(DataType dtype, ReduceOp op);

std::shared_ptr<core::HandleState> submit_in_place(uint32_t set, std::string name,
                                                   std::shared_ptr<const core::EntrySpec> spec,
                                                   void* memory, int64_t count,
                                                   std::shared_ptr<void> keep_alive);

}  // namespace horon::torch_detail

// What the ranks tell each other in a round that is not plain (round_flags.h), in one small
// allreduce: whether they are in the same round and have the same buckets, and what a rank can't
// know of the others.
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

// Which round this is, as this rank has counted them.
struct RoundNumber {
  int64_t step = 1;
  int64_t round = 1;  // of the step: each backward() is one, and a step has one at least
  int64_t total = 0;  // rounds before this one
};

// Of one rank.
struct RoundFacts {
  RoundNumber number;
  int64_t late = 0;                // gradients that are to be reduced apart from the buckets
  bool failed = false;             // something of this rank could not be submitted
  bool early = false;              // step() came before backward_passes_per_step backward passes
  bool rounded_otherwise = false;  // the optimizer's last step, than its own step() does
  std::optional<double> weight;
  std::optional<uint64_t> replica;    // its fingerprint; empty: replicas are not compared
  bool wants_look = false;            // at the replicas, if fingerprints differ
  std::optional<uint64_t> gradients;  // their fingerprint before the reduction; empty: none
  // What all ranks are to use from the next round on; one rank alone says so.
  std::optional<BucketBytes> bytes;
  bool reorders = false;  // this rank has another order of gradients for the buckets
};

// Of all ranks that have not joined. The same on all of them.
struct RoundTotals {
  int participants = 1;
  bool same_number = true;
  int64_t late = 0;
  int failed = 0;
  int early = 0;
  int weighted = 0;  // ranks that gave a weight
  double weight = 0;
  bool unlike_steps = false;    // the last step of some ranks, not of all, was rounded otherwise
  bool replicas_alike = true;   // as far as their fingerprints tell
  bool look = false;            // some rank wants to look at them if they are not
  bool same_gradients = false;  // of several ranks, as far as their fingerprints tell
  // What all ranks count their rounds by from here on; a rank that has joined for a while has
  // missed some. Only where the totals are equal the ranks have sampled the same elements.
  bool same_total = true;
  int64_t next_total = 1;
  BucketBytes bytes;  // `others` is 0: nobody has said any
  bool reorders = false;
};

class RoundAgreement {
 public:
  // `plan` describes the buckets in words: ranks whose plans differ learn so from the first round,
  // as Error(Mismatch) that shows both.
  RoundAgreement(const std::string& reducer_name, const std::string& plan,
                 const GradientSettings& settings);

  // These two in this order, at most once a round, on every rank. Throw Error.
  void announce(const RoundFacts& facts);
  RoundTotals agree();
  // Instead of these two: makes them fail on all ranks, by an error that holds the text of this
  // one.
  void refuse(const Error& error) const;

  // "ranks 1 and 3", for an error text: those that say so. Collective.
  std::string ranks_that(bool say_so) const;
  // Of each rank, in the order of ranks; `step` of one that has joined is 0. Collective.
  std::vector<RoundNumber> numbers_of_ranks(const RoundNumber& mine) const;

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
std::shared_ptr<const core::EntrySpec> captured(core::EntrySpec spec);
// The spec of an allreduce of plain numbers, without what the settings say of gradients.
core::EntrySpec number_spec(DataType dtype, ReduceOp op);

// `device`: that holds the memory, and whose current stream has written it.
std::shared_ptr<core::HandleState> submit_in_place(uint32_t set, std::string name,
                                                   std::shared_ptr<const core::EntrySpec> spec,
                                                   void* memory, int64_t count,
                                                   std::shared_ptr<void> keep_alive,
                                                   c10::Device device = c10::kCPU);

// The largest of each element over the ranks. Collective, blocks. Throws Error.
std::vector<double> largest_of_ranks(uint32_t set, const std::string& name,
                                     std::vector<double> values);
// One number from each rank, in the order of ranks. Collective, blocks. Throws Error.
std::vector<double> gather_number(uint32_t set, const std::string& name, double mine, int set_rank,
                                  size_t ranks);

}  // namespace horon::torch_detail

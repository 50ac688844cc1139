// The order of an epoch's samples, and which rank draws which of them: what samplers share. Knows
// no LibTorch.
//
// An epoch is a sequence of samples, the same on all ranks. A Deal gives each rank its part of it.
// A job that goes on where another one stopped, on any number of ranks, takes out what the earlier
// job has drawn and deals out the rest, so no sample is lost and none comes twice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "horon/ops/session/process_set.h"

namespace horon::torch_detail {

// What becomes of samples that can't be shared out evenly.
enum class Tail : uint8_t {
  Repeat,  // the first ones come again, so that all ranks draw equally many
  Drop,    // the last ones are left out, so that all ranks draw equally many
  Uneven,  // some ranks draw one more
};

// For each rank: the indices into the epoch's order of the samples that it draws, in the order in
// which it draws them.
using Places = std::vector<std::vector<size_t>>;

// An earlier job, which has drawn a part of the epoch.
struct Stage {
  std::vector<size_t> drawn;  // by each of its ranks
  size_t batch = 0;           // of its sampler; 0: it had none of its own
  bool operator==(const Stage&) const = default;
};

class Deal {
 public:
  virtual ~Deal() = default;
  // `order`: sample numbers. A function of its arguments alone, the same on every machine.
  virtual Places deal(const std::vector<size_t>& order, size_t ranks) const = 0;
  // What deal() has given in that job, which may have had batches of another size.
  virtual Places replay(const std::vector<size_t>& order, const Stage& stage) const = 0;
  // Deals of equal rules can replay each other's jobs.
  virtual uint64_t rules() const = 0;
  // Would batches of another size give a rank other samples, or the same ones in another order?
  virtual bool depends_on_batch() const = 0;
  // Tail::Drop leaves out what is behind the last multiple of this many samples; 0: nothing.
  virtual size_t multiple(size_t ranks) const = 0;
};

// Place i goes to rank i % ranks. With batches of one size, n steps of all ranks take the first
// samples of the order.
class InterleavedDeal : public Deal {
 public:
  // `batch`: Tail::Drop leaves out incomplete batches of all ranks, of so many samples each.
  explicit InterleavedDeal(Tail tail, size_t batch = 1) : tail_(tail), batch_(batch) {}
  Places deal(const std::vector<size_t>& order, size_t ranks) const override;
  Places replay(const std::vector<size_t>& order, const Stage& stage) const override;
  uint64_t rules() const override { return 1; }
  bool depends_on_batch() const override { return tail_ == Tail::Drop; }
  size_t multiple(size_t ranks) const override { return tail_ == Tail::Drop ? ranks * batch_ : 0; }

 private:
  Tail tail_;
  size_t batch_;
};

// One contiguous block for each rank; blocks differ by at most one sample.
class BlockDeal : public Deal {
 public:
  Places deal(const std::vector<size_t>& order, size_t ranks) const override;
  Places replay(const std::vector<size_t>& order, const Stage& stage) const override {
    return deal(order, stage.drawn.size());
  }
  uint64_t rules() const override { return 2; }
  bool depends_on_batch() const override { return false; }
  size_t multiple(size_t /*ranks*/) const override { return 0; }
};

// Samples of unequal cost: in each step all ranks draw equally many samples of nearly equal cost.
//
// A step of all ranks takes ranks * batch samples. They are sorted by cost and dealt out in two
// ways, of which the better one counts; both go from the dearest to the cheapest (longest
// processing time first) and give all ranks equally many:
//  - in rounds of one sample for each rank; within a round the dearest goes to the rank with the
//    lowest sum so far. A round changes the difference between two ranks from d to something
//    between d and minus the round's spread, so it never exceeds the largest spread of one round.
//    That is the bound: the sums of two ranks differ by at most the largest difference between the
//    costs of `ranks` neighbours in the sorted list;
//  - each sample to the rank with the lowest sum that still lacks samples, which is better where a
//    few samples are much dearer than the rest.
class BalancedDeal : public Deal {
 public:
  // `costs`: of each sample, finite and not negative. `pool`: the samples of so many steps are
  // sorted together before they are cut into steps, so that those of a step are alike.
  BalancedDeal(std::vector<double> costs, Tail tail, size_t batch, size_t pool)
      : costs_(std::move(costs)), tail_(tail), batch_(batch), pool_(pool) {}
  Places deal(const std::vector<size_t>& order, size_t ranks) const override;
  Places replay(const std::vector<size_t>& order, const Stage& stage) const override;
  uint64_t rules() const override;
  bool depends_on_batch() const override { return true; }
  size_t multiple(size_t ranks) const override { return tail_ == Tail::Drop ? ranks * batch_ : 0; }

 private:
  void deal_step(const std::vector<size_t>& order, const std::vector<size_t>& step,
                 Places& places) const;

  std::vector<double> costs_;
  Tail tail_;
  size_t batch_;
  size_t pool_;
};

struct EpochOptions {
  size_t samples = 0;
  uint64_t seed = 0;
  bool shuffle = true;
  size_t epoch = 0;
  // How many samples Tail::Drop leaves out, as the job in which the epoch began has computed it, by
  // Deal::multiple() of its ranks.
  size_t left_out = 0;
};

// The sample numbers of an epoch. Each epoch leaves out other samples, at the end of the order:
// while all epochs leave out equally many, none is left out again before all others have been. (A
// job that goes on with other ranks or batches begins elsewhere.)
std::vector<size_t> epoch_order(const EpochOptions& options);

// Which part of an epoch is this rank's.
struct Shard {
  size_t rank = 0;
  size_t ranks = 1;
  std::string fault = {};  // why there is none; empty if there is
};

// The one that a sampler's options name; by default this rank's in the set, which needs a running
// session.
Shard shard_of(std::optional<size_t> ranks, std::optional<size_t> rank, const ProcessSet& set);

// The samples that rank `rank` of `ranks` draws, after what earlier jobs have drawn.
std::vector<size_t> samples_of_rank(const EpochOptions& options, const Deal& deal,
                                    const std::vector<Stage>& stages, size_t ranks, size_t rank);

}  // namespace horon::torch_detail

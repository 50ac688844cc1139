// Finds out whether the parameters have gone apart on the ranks, from a few of their elements.
//
// Replicas that receive the same gradients stay alike. They go apart where a program changes
// parameters or gradients on some ranks only, or differently: it clips what is not reduced yet,
// loads a checkpoint on one rank, forgets broadcast_parameters(). In each round of reductions the
// ranks compare the bits of a few elements, others in each round, with what they send anyway. If
// those differ they look for the parameter (find_unlike()).
//
// On CPUs of different kinds an optimizer's step rounds differently: then the bits differ, but the
// look finds no parameter. The tolerance grows with the rounds, as such roundings add up, and looks
// become rarer (LookSchedule). Frozen parameters are not compared.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/torch_bindings/gradients/settings.h"
#include "horon/torch_bindings/gradients/slot.h"

namespace horon::torch_detail {

// Elements that are compared in a round, shared out over the parameters; where there are more
// parameters than that, one of each.
inline constexpr size_t kElementsInRound = 256;

// Of one reducer: each call gets the same slots, perhaps with new ones behind them.
class ReplicaCheck {
 public:
  // The bits of some elements: equal on ranks whose parameters are. `number` counts rounds, and
  // chooses the elements: the same on all ranks.
  uint64_t fingerprint(const std::deque<GradientSlot>& slots, uint64_t number);

  // Called after the fingerprints of `number` differed. Returns the error that names the first of
  // the sampled parameters that differs by more than rounding, and the ranks; empty if none does.
  // Collective. Throws Error.
  std::optional<Error> find_unlike(const std::string& reducer_name,
                                   const std::deque<GradientSlot>& slots,
                                   const GradientSettings& settings, uint64_t number);

 private:
  // A sampled element that is not the same on all ranks.
  struct Unlike {
    const GradientSlot* slot = nullptr;
    int64_t index = 0;
    double tolerance = 0;
  };
  Unlike first_unlike(const std::string& name, const std::deque<GradientSlot>& slots,
                      const GradientSettings& settings, uint64_t number);

  // For each slot the largest absolute value that has been sampled: a parameter that comes near 0
  // still has the differences of the time when it was large.
  std::vector<double> largest_;
};

// How far elements of a parameter may be apart by rounding after so many rounds, as a part of the
// largest element that it has had.
double rounding_of_replicas(at::ScalarType dtype, uint64_t rounds);

// Whether this rank wants to look for a parameter that differs. The ranks look if one of them wants
// to, so they need not have the same history (one may have joined for a while).
class LookSchedule {
 public:
  bool wants_look() const { return pause_ == 0; }
  void fingerprints_were_alike() { pause_ = next_pause_ = 0; }
  void looked() {  // and found no more than rounding
    next_pause_ = std::min(2 * next_pause_ + 1, kPauseMax);
    pause_ = next_pause_;
  }
  void did_not_look() { pause_ = std::max(pause_ - 1, 0); }

 private:
  static constexpr int kPauseMax = 63;
  int pause_ = 0;  // rounds
  int next_pause_ = 0;
};

}  // namespace horon::torch_detail

// Finds out whether all ranks have the same gradients before the reduction: then they train with
// the same data, and together learn no more than one of them would.
//
// It is an easy mistake: a program gives all ranks one seed, so that they begin with the same
// parameters, and LibTorch's samplers then draw the same batches on all of them.
//
// In the first rounds that the ranks agree on (round_agreement.h) each says a fingerprint of a few
// numbers of its gradients. Only where these are equal does it take further rounds.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

namespace horon::torch_detail {

class EqualGradients {
 public:
  // A first round by itself proves little: a program may begin with one of constant data.
  static constexpr int kRounds = 3;

  bool watches() const { return alike_ < kRounds; }
  // The next round is to be agreed on, for this.
  bool wants_round() const { return watches() && alike_ > 0; }

  // A gradient of this rank is about to be reduced; `slot` is its number. Those on a GPU are not
  // looked at. Any thread.
  void see(size_t slot, const at::Tensor& gradient);
  // Of what was seen in this round; empty if that were no numbers but 0, or none that is finite.
  std::optional<uint64_t> fingerprint() const;
  void begin_round();

  // What the ranks have found. True: all gradients were alike in kRounds rounds, for the first
  // time.
  bool heard(bool alike);

 private:
  int alike_ = 0;                  // rounds; kRounds: there is no more to find out
  std::atomic<uint64_t> seen_{0};  // a sum: gradients come in any order
  std::atomic<bool> has_seen_{false};
};

}  // namespace horon::torch_detail

// How the members of a communicator decide what all of them must do: each gives a number, and the
// largest counts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "horon/ops/nccl/host_maximum.h"

namespace horon::ops {

// One vote after the other, each at the same point of the line's order on all members. One thread
// at a time.
class MembersVote {
 public:
  // `allreduce`: as in LaunchTurn.
  explicit MembersVote(core::CollectiveOp& allreduce) : allreduce_(allreduce) {}

  // Called again and again with the same number until it gives the largest of all members. Never
  // waits. Throws Error.
  std::optional<uint8_t> largest(uint8_t mine) {
    if (flight_ == nullptr) {
      number_ = mine;
      flight_ = start_host_maximum(allreduce_, DataType::UInt8, &number_, 1);
    }
    const core::Progress progress = flight_->step();
    is_driven_ = progress == core::Progress::Driving || progress == core::Progress::Advanced;
    if (progress != core::Progress::Done) return std::nullopt;
    flight_.reset();
    return number_;
  }
  // The others may wait for what this member does in the next step.
  bool must_be_driven() const { return flight_ != nullptr && is_driven_; }

 private:
  core::CollectiveOp& allreduce_;
  uint8_t number_ = 0;
  std::unique_ptr<core::InFlight> flight_;
  bool is_driven_ = false;  // the flight, as of its latest step
};

}  // namespace horon::ops

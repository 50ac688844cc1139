// How the members of a process set learn the unique id with which they make an NCCL communicator.
#pragma once

#include <memory>

#include "horon/core/execution/collective_op.h"
#include "horon/ops/nccl/nccl_api.h"

namespace horon::ops {

// One id after the other. One thread at a time.
class NcclIdExchange {
 public:
  virtual ~NcclIdExchange() = default;
  // Called again and again until it returns true: then `id` is the first member's. The first member
  // passes its own id in every call. Never waits. Throws Error.
  virtual bool step(NcclUniqueId& id) = 0;
  // After step() has returned false: the others may wait for what this member does in the next
  // step.
  virtual bool must_be_driven() const { return false; }
};

// All members know the id already.
class KnownNcclId final : public NcclIdExchange {
 public:
  explicit KnownNcclId(const NcclUniqueId& id) : id_(id) {}
  bool step(NcclUniqueId& id) override {
    id = id_;
    return true;
  }

 private:
  const NcclUniqueId id_;
};

// By a maximum on host memory, to which the other members give zeros. It takes place in the middle
// of a line's first collective on a device, at the same point of the line's order on all members,
// and ends when all of them have come there.
class AllreduceNcclId final : public NcclIdExchange {
 public:
  // `allreduce`: as in LaunchTurn. `first`: this member has the id.
  AllreduceNcclId(core::CollectiveOp& allreduce, bool first)
      : allreduce_(allreduce), first_(first) {}
  bool step(NcclUniqueId& id) override;
  bool must_be_driven() const override { return is_driven_; }

 private:
  core::CollectiveOp& allreduce_;
  const bool first_;
  NcclUniqueId bytes_{};
  std::unique_ptr<core::InFlight> flight_;
  bool is_driven_ = false;  // the flight, as of its latest step
};

}  // namespace horon::ops

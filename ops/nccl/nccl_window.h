// Memory that all members of a communicator have registered with it (ncclCommWindowRegister): NCCL
// then reads and writes it where it lies in all of them, by faster kernels.
//
// Such a kernel takes for granted that each member's data lies at the same place of the same
// window. If it lies in one on some members only, they launch kernels that do not meet, and hang or
// sum the wrong bytes. So there is one window, of one size, made at one point of the line's order;
// and what lies in it begins where it begins (core/execution/shared_scratch.h).
//
// Where NCCL fails in the middle of this, the communicator is lost on all members, so nothing of
// theirs may be under way on it, and another one is made, which gets no window.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "horon/core/execution/event.h"
#include "horon/core/execution/shared_scratch.h"
#include "horon/ops/cuda/background_call.h"
#include "horon/ops/nccl/job_gpu.h"
#include "horon/ops/nccl/members_vote.h"

namespace horon::ops {

// One thread at a time.
class NcclWindow {
 public:
  struct Parts {
    std::shared_ptr<JobGpu> gpu;
    size_t bytes = 0;             // the same on all members; 0: none is wanted
    MembersVote* vote = nullptr;  // may be null for one member
    // A registration that is not over by then, while the members answer, has failed.
    std::chrono::nanoseconds limit = std::chrono::seconds(120);
  };
  explicit NcclWindow(Parts parts) : parts_(std::move(parts)) {}

  // What there may be; 0 once it is known that there will be none.
  size_t bytes_max() const { return stage_ == Stage::None ? 0 : parts_.bytes; }
  // Null: there is none yet, or it is too small. Asks for it: then it is made by step(). On all
  // members at the same point of the line's order. `earlier` is asked then: its event happens when
  // all work of earlier batches is done; null: there is none.
  using LastOfEarlier = std::function<std::shared_ptr<core::Event>()>;
  core::SharedScratch* scratch(size_t bytes, const LastOfEarlier& earlier);

  // Whoever uses the communicator goes on with that first.
  bool is_being_made() const { return stage_ > Stage::Unasked && stage_ < Stage::There; }
  // A failure of NCCL meanwhile is the window's, not the job's.
  // From the vote on: a member that has seen it may be ahead.
  bool may_be_being_registered() const {
    return stage_ >= Stage::Meeting && stage_ <= Stage::Comparing;
  }
  bool must_be_driven() const { return parts_.vote != nullptr && parts_.vote->must_be_driven(); }
  enum class Step : uint8_t {
    Working,
    Settled,           // it is there, or will never be
    CommunicatorLost,  // abort it, and go on without one until all members know
  };
  // On the device. `comm`: null once it is lost. Throws Error where the members can't agree, and
  // what has gone wrong with the communicator before anything is registered.
  Step step(NcclApi& nccl, NcclComm comm);

  // Before the communicator is finalized. False: work may still use the memory. NCCL waits for the
  // device then.
  bool is_deregistered(NcclApi& nccl, NcclComm comm) noexcept;
  // What is left when the communicator ends, for whoever ends it.
  struct Left {
    std::byte* memory = nullptr;               // to be freed behind the end
    std::shared_ptr<NcclWindowHandle> handle;  // NCCL may write it until then
  };
  // Memory that is in use is kept for ever.
  Left leave() noexcept;
  bool is_there() const { return stage_ == Stage::There; }
  // Of NCCL, which has cost this member the communicator; empty: none has.
  const std::string& failure() const { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : uint8_t {
    Unasked,
    Draining,     // what was enqueued before must be done
    Allocating,   // on a thread of its own: that may take long
    Meeting,      // have all members memory?
    Registering,  // NCCL does
    Comparing,    // have all members a window?
    There,
    None,
  };
  // The members' answers; the largest counts.
  enum Answer : uint8_t { kYes, kNo, kLost };

  // Nothing: the next stage.
  std::optional<Step> step_on(NcclApi& nccl, NcclComm comm);
  void allocate();
  std::optional<uint8_t> vote();
  void begin_to_register(NcclApi& nccl, NcclComm comm) noexcept;
  bool has_registered(NcclApi& nccl, NcclComm comm) noexcept;
  void lose() noexcept;
  bool is_in_use() const;
  std::optional<Step> compare(NcclApi& nccl, NcclComm comm);
  void deregister(NcclApi& nccl, NcclComm comm) noexcept;
  void free_memory() noexcept;

  const Parts parts_;
  Stage stage_ = Stage::Unasked;
  std::shared_ptr<core::Event> earlier_;
  std::unique_ptr<BackgroundCall<std::byte*>> allocating_;
  std::unique_ptr<BackgroundCall<bool>> freeing_;
  Clock::time_point began_;  // to register
  uint8_t answer_ = kYes;
  std::string failure_;
  core::SharedScratch scratch_;
  std::shared_ptr<NcclWindowHandle> handle_;  // NCCL writes it, on a thread of its own
};

}  // namespace horon::ops

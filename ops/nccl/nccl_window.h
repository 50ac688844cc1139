// Memory that all members of a communicator have registered with it (ncclCommWindowRegister): NCCL
// then reads and writes it where it lies in all of them, by faster kernels.
//
// Such a kernel takes for granted that each member's data lies at the same place of the same
// window. If the data of only some members does, they launch kernels that do not meet, and hang or
// sum the wrong bytes. So there is one window, of one size, made at one point of the line's order;
// and all data in it begins at its beginning (core/execution/shared_scratch.h).
//
// If NCCL fails in the middle of this, the communicator is lost on all members. So they must have
// nothing under way on it, and they make another one, which gets no window.
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
    // A registration that takes longer than this, while the members answer, has failed.
    std::chrono::nanoseconds limit = std::chrono::seconds(120);
  };
  explicit NcclWindow(Parts parts) : parts_(std::move(parts)) {}

  // The most that scratch() may give; 0 once it is known that there will be no window.
  size_t bytes_max() const { return stage_ == Stage::None ? 0 : parts_.bytes; }
  // Null: there is no window yet, or it is too small. The first call asks for it: then step() makes
  // it. Call it on all members at the same point of the line's order. `earlier` is then called: its
  // event happens when all work of earlier batches is done; null: there is none.
  using LastOfEarlier = std::function<std::shared_ptr<core::Event>()>;
  core::SharedScratch* scratch(size_t bytes, const LastOfEarlier& earlier);

  // While true, the user of the communicator must call step() before all else.
  bool is_being_made() const { return stage_ > Stage::Unasked && stage_ < Stage::There; }
  // A failure of NCCL meanwhile is the window's, not the job's. True from the vote on, since a
  // member that has seen its result may be ahead.
  bool may_be_being_registered() const {
    return stage_ >= Stage::Meeting && stage_ <= Stage::Comparing;
  }
  bool must_be_driven() const { return parts_.vote != nullptr && parts_.vote->must_be_driven(); }
  enum class Step : uint8_t {
    Working,
    Settled,           // it is there, or will never be
    CommunicatorLost,  // abort it, and go on without one until all members know
  };
  // Call it on the device. `comm`: null once it is lost. Throws Error if the members can't agree,
  // or if something went wrong with the communicator before anything was registered.
  Step step(NcclApi& nccl, NcclComm comm);

  // Call it before the communicator is finalized: deregisters, for which NCCL waits for the device.
  // False: work may still use the memory.
  bool is_deregistered(NcclApi& nccl, NcclComm comm) noexcept;
  // What is left when the communicator ends, for whoever ends it.
  struct Left {
    std::byte* memory = nullptr;               // to be freed after the end
    std::shared_ptr<NcclWindowHandle> handle;  // NCCL may write it until then
  };
  // Memory that is in use is kept for ever.
  Left leave() noexcept;
  bool is_there() const { return stage_ == Stage::There; }
  // The failure of NCCL that has cost this member the communicator; empty: there was none.
  const std::string& failure() const { return failure_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : uint8_t {
    Unasked,
    Draining,     // what was enqueued before must be done
    Allocating,   // on a thread of its own: that may take long
    Meeting,      // asks whether all members have memory
    Registering,  // NCCL does
    Comparing,    // asks whether all members have a window
    There,
    None,
  };
  // The members' answers; the largest counts.
  enum Answer : uint8_t { kYes, kNo, kLost };

  // nullopt: goes on with the next stage.
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
  Clock::time_point began_;  // when it began to register
  uint8_t answer_ = kYes;
  std::string failure_;
  core::SharedScratch scratch_;
  std::shared_ptr<NcclWindowHandle> handle_;  // NCCL writes it, on a thread of its own
};

}  // namespace horon::ops

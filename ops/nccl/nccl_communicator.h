// The NCCL communicator of a process set. The first batch that needs it makes it, without blocking;
// one batch after the other uses it (nccl_line.h); and it ends without ever waiting for a peer that
// may be dead. If NCCL loses it while it should get a window, which happens on all members, they
// make another one in its place.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "horon/ops/cuda/background_call.h"
#include "horon/ops/nccl/job_gpu.h"
#include "horon/ops/nccl/nccl_id_exchange.h"
#include "horon/ops/nccl/nccl_window.h"

namespace horon::ops {

// One thread at a time.
class NcclCommunicator {
 public:
  struct Parts {
    std::shared_ptr<JobGpu> gpu;
    int size = 1;
    int rank = 0;                                 // this rank's index among the members
    std::unique_ptr<NcclIdExchange> id_exchange;  // may be null for one member
    std::string members;                          // for messages: "ranks 0, 1"
    // Fails if the communicator is not made within this time after all members have met.
    std::chrono::nanoseconds limit = std::chrono::seconds(120);
    // The size of the window, if one is asked for; 0: there will be none. The same on all members.
    size_t window_bytes = 0;
    std::chrono::nanoseconds window_limit = std::chrono::seconds(120);  // to register it
    std::unique_ptr<MembersVote> vote = nullptr;  // for several members that may have a window
  };
  // Makes nothing yet: a program without tensors on devices pays nothing.
  explicit NcclCommunicator(Parts parts);
  // For members that know the id already.
  NcclCommunicator(std::shared_ptr<NcclApi> nccl, std::shared_ptr<CudaApi> cuda, int size,
                   const NcclUniqueId& id, int rank);
  // Ends it in order if all that was enqueued happens within a few seconds, else by abort(). Waits
  // no longer than that in all, except for the device when a window is deregistered. What NCCL
  // still has to do then is left to a separate thread.
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int size() const { return parts_.size; }
  int rank() const { return parts_.rank; }

  // True: NCCL takes a call, and the calls before are in their streams. The first call begins to
  // make the communicator, and further calls go on with that. Throws if it has failed or was
  // aborted.
  bool is_ready();
  // The communicator is made, or was. Any thread.
  bool has_been_made() const { return has_been_made_.load(std::memory_order_acquire); }
  // Throws Error if the stream is not captured any more: this member would run the call now, the
  // others only when they launch their graphs.
  void require_capture(CudaStream stream) const;
  // While the members meet: the others may wait for this one's part, which goes on when it is asked
  // again.
  bool must_be_driven() const;
  // The window of the members (nccl_window.h). The first batch that asks for it makes it before its
  // own calls, and does not use it yet.
  NcclWindow& window() { return window_; }
  const NcclWindow& window() const { return window_; }
  // Once is_ready(): makes calls, as one group. Throws Error.
  void call(const std::function<void(NcclApi&, NcclComm)>& calls);
  // Throws if the communicator has failed since.
  void check();

  // Makes the kernels that are in streams end, without valid results. Returns at once: NCCL's own
  // call, which may wait for peers without a limit, runs on a separate thread.
  void abort() noexcept;
  // After abort(): waits until that call has returned, or `limit` has passed.
  void finish_abort(std::chrono::steady_clock::time_point limit) noexcept;

 private:
  using Clock = std::chrono::steady_clock;
  enum class Stage : uint8_t {
    New,
    Opening,     // the device and the library; the first member makes the id
    Meeting,     // the members learn the id
    Beginning,   // the call that begins to make it
    Connecting,  // NCCL connects the members
    Made,
    Aborted,
  };
  struct Opened {
    std::shared_ptr<NcclApi> nccl;
    NcclUniqueId id{};
  };

  bool is_made();
  bool has_settled_window();
  bool make_on();
  void open();
  void begin();
  bool is_idle();
  enum class End : uint8_t { Destroy, Abort };
  void end(End how) noexcept;
  bool finalized_by(Clock::time_point limit) noexcept;
  void drop(End how) noexcept;

  struct Ending;
  const Parts parts_;
  Stage stage_ = Stage::New;
  std::atomic<bool> has_been_made_{false};
  Clock::time_point began_;  // when it began to make the communicator
  std::unique_ptr<BackgroundCall<Opened>> opening_;
  std::unique_ptr<BackgroundCall<NcclComm>> beginning_;
  std::shared_ptr<NcclApi> nccl_;
  NcclUniqueId id_{};
  NcclComm comm_ = nullptr;
  NcclWindow window_;
  std::shared_ptr<Ending> ending_;  // of end()
};

}  // namespace horon::ops

// Decides without a lock which of the threads in backward() submits a bucket, and keeps the others
// from writing to its memory meanwhile.
//
// Between the two hooks of a parameter autograd changes its gradient: that thread is a writer of
// the bucket. A bucket is complete when all gradients that it waits for have come and it has no
// writer. The writer that leaves a complete bucket submits it, and no other thread does. Writers
// that come while it is being submitted wait until that is done.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

namespace horon::torch_detail {

class BucketCountdown {
 public:
  // The bucket waits for so many gradients from now on. Writers that are here still count.
  void begin(int64_t awaited) { restart(static_cast<uint64_t>(awaited) * kAwaited); }
  // The bucket is not submitted before begin(). Writers that are here still count.
  void close() { restart(kClosed); }
  // As close(), and writers are forgotten: those that an exception has kept from leaving too.
  void reset() { word_ = kClosed; }

  // A writer comes. It waits while another thread submits the bucket.
  void enter() {
    if ((word_.fetch_add(kWriter, std::memory_order_acquire) & kSubmitting) != 0) wait();
  }
  // A writer leaves. `came`: with one of the gradients that the bucket waits for. True: the caller
  // submits the bucket now, and then calls submitted(). That happens at most once after begin(),
  // and never in a call without `may_submit`.
  bool leave(bool came, bool may_submit) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    for (;;) {
      const uint64_t counted = came && (seen & kAllAwaited) != 0 ? kAwaited : 0;
      const uint64_t left = seen - kWriter - counted;
      const bool submits = left == 0 && may_submit;
      if (word_.compare_exchange_weak(seen, submits ? kSubmitting : left, std::memory_order_acq_rel,
                                      std::memory_order_relaxed)) {
        return submits;
      }
    }
  }
  // Writers that wait go on. The bucket is closed.
  void submitted() { word_.fetch_add(kClosed - kSubmitting, std::memory_order_release); }

 private:
  // From the lowest bit: writers, gradients that are awaited, and two flags.
  static constexpr uint64_t kWriter = 1;
  static constexpr uint64_t kAwaited = uint64_t{1} << 32;
  static constexpr uint64_t kSubmitting = uint64_t{1} << 62;
  static constexpr uint64_t kClosed = uint64_t{1} << 63;
  static constexpr uint64_t kAllWriters = kAwaited - 1;
  static constexpr uint64_t kAllAwaited = kSubmitting - kAwaited;

  // Writers may come and leave meanwhile.
  void restart(uint64_t state) {
    uint64_t seen = word_.load(std::memory_order_relaxed);
    while (!word_.compare_exchange_weak(seen, state | (seen & kAllWriters),
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
    }
  }
  void wait() const {
    while ((word_.load(std::memory_order_acquire) & kSubmitting) != 0) std::this_thread::yield();
  }

  std::atomic<uint64_t> word_{kClosed};
};

}  // namespace horon::torch_detail

// A Gate in memory that all members map. It is lock-free: a member that is stopped in the middle of
// a call holds up no other.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>

#include "horon/core/negotiation/gate.h"

namespace horon::core {

class RingGate : public Gate {
 public:
  // How much memory the gate of so many members (of one host) needs; a multiple of 64.
  static size_t bytes(int size);

  // `area`: bytes(size), zeroed before the first member comes, 64-byte aligned, the same memory for
  // all members; outlives the gate. `wake_others` makes all other members call next(); `wake_first`
  // makes only member 0 do so, and is needed where there are several hosts. They must not throw.
  RingGate(std::byte* area, int me, int size, std::function<void()> wake_others,
           std::function<void()> wake_first = {});

  bool fill(Place place) override;
  void append_go(Place place, bool more) override;
  void append_marker(uint64_t position) override;
  void append_filled(Place place) override;
  void wake() override;
  bool room() const override;
  std::optional<RingItem> next(uint64_t applied) override;

 private:
  struct Shared;
  struct alignas(64) Cursor {
    std::atomic<uint64_t> read;  // items that this member has read
  };

  void append(const RingItem& item);
  static Cursor* cursors_behind(Shared* shared);

  Shared* const shared_;
  Cursor* const cursors_;  // by member
  const size_t me_;
  const uint32_t size_;
  const std::function<void()> wake_others_;
  const std::function<void()> wake_first_;
  uint64_t read_ = 0;             // the value of cursors_[me_]
  mutable uint64_t slowest_ = 0;  // of all cursors, when room() last looked
};

}  // namespace horon::core

#include "horon/core/base/prompt_thread.h"

#include <cstdint>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace horon::core {
namespace {

// The first version of the kernel's struct sched_attr; not every libc declares it.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_OTHER;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;  // SCHED_OTHER: the time slice that the thread asks for
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};
static_assert(sizeof(SchedulingAttributes) == 48);

constexpr unsigned long kTimerSlackNs = 1000;
constexpr uint64_t kSliceNs = 100'000;  // the shortest that the kernel accepts

}  // namespace

void make_thread_prompt() noexcept {
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0UL, 0UL, 0UL);
  SchedulingAttributes attributes;
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER) return;  // the user has chosen another policy
  attributes.size = sizeof(attributes);
  attributes.runtime_ns = kSliceNs;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

PromptTimers::~PromptTimers() {
  if (before_ns_ >= 0)
    prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(before_ns_), 0UL, 0UL, 0UL);
}

void PromptTimers::enable() noexcept {
  if (before_ns_ >= 0) return;
  before_ns_ = prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL);
  prctl(PR_SET_TIMERSLACK, kTimerSlackNs, 0UL, 0UL, 0UL);
}

}  // namespace horon::core

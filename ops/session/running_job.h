// The parts of the running session, for the library itself: programs need session.h only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/host/cpu_share.h"
#include "horon/core/runtime/runtime.h"
#include "horon/ops/nccl/job_gpu.h"
#include "horon/ops/session/call_counts.h"
#include "horon/ops/session/process_set.h"
#include "horon/ops/timing/job_constants.h"

namespace horon::ops {

// Which of the sessions of this process runs, from 1 on; 0: none. Any thread.
uint32_t session_number();
// All functions below throw Error(NotInitialized) outside init() .. shutdown(). Any thread.
core::Runtime& runtime();
CallCounts& call_counts();
const core::CpuShare& cpu_share();
// What the algorithms of all sets are chosen by; the same on all ranks.
const JobConstants& constants();
// The GPU of this rank, and what ranks can do with theirs together. Never null.
std::shared_ptr<JobGpu> gpu();
// Memory that collectives of this host can use without a copy (a gradient bucket); 64-byte aligned,
// zeroed. It may outlive the session.
std::shared_ptr<std::byte> allocate_host(size_t bytes);
// The same for a short time and not zeroed: the memory is reused, so that its pages are there. Null
// where many such pieces are held at a time.
std::shared_ptr<std::byte> allocate_host_reused(size_t bytes);
// Why an op is chosen for a collective of this kind, of 4 MiB of float32 in such memory, in this
// set: one line per candidate.
std::vector<std::string> explain_selection(const ProcessSet& set = {},
                                           CollectiveKind kind = CollectiveKind::Allreduce,
                                           DeviceKind device = DeviceKind::Host);

// Which algorithm each kind of collective takes in the world: see explain_choices.h.
std::vector<std::string> explain_choices_of_job();

}  // namespace horon::ops

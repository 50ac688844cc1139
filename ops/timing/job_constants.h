// The constants of a job, the same on all its ranks: read from the file of rank 0's host, or
// measured between the first two ranks of each host and between neighbouring hosts.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "horon/core/base/config.h"
#include "horon/core/bootstrap/bootstrap.h"
#include "horon/ops/choice/machine_constants.h"
#include "horon/ops/hierarchical/messages.h"
#include "horon/ops/timing/wire_timing.h"

namespace horon::ops {

struct JobConstants {
  MachineConstants constants;
  // "measured in 12 ms", "measured in 0 ms, but not hand-offs on 1 host: not kept",
  // "read from ...", "defaults: HORON_MEASURE=off"
  std::string origin;
};

struct MeasuredJob {
  std::string host_name;  // of this rank, in the words that tell jobs apart
  // HostTiming::area_bytes() of zeroed memory that the ranks of this host share; null if they share
  // none. The same on all ranks of the host.
  std::byte* area = nullptr;
  // The process of the other one of this host's first two ranks; 0 if the kernel may not copy from
  // it.
  int peer_process = 0;
  std::chrono::microseconds host_limit = std::chrono::milliseconds(20);
  // Called on the first rank of each host, if there are several hosts.
  std::function<std::shared_ptr<Messages>()> messages;
  WireTiming::Limits wire_limits;
};

// Collective over the job, before anything else runs. If a rank throws, all do, as soon as all have
// come. Before that, a rank that waits for a host logs that it does not answer.
JobConstants find_job_constants(const core::Bootstrap& bootstrap, const core::Config& config,
                                const MeasuredJob& job);

}  // namespace horon::ops

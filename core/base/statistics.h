// What Horon has done on one rank since it started, and what is under way.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace horon {

// Over all process sets of the rank. Each number is exact; they are not all of one moment.
struct Statistics {
  // Entries (a tensor, a group or a bucket under one name) by the way in which they were started.
  uint64_t negotiated_starts = 0;  // by a Plan, a message of the coordinator
  uint64_t frozen_starts = 0;      // by the gates in shared memory, without a Plan
  uint64_t eager_starts = 0;       // between hosts, by the votes: they carried the elements
  // The collectives that ran the first two kinds: fewer, where several were fused.
  uint64_t negotiated_batches = 0;
  uint64_t frozen_batches = 0;
  uint64_t void_starts = 0;  // filled by all ranks, but thawed before the start: then negotiated
  uint64_t freezes = 0;      // entries that were frozen
  uint64_t thaws = 0;        // entries that were thawed: a rank has deviated
  // Messages of negotiation between ranks, with any number of items each. The data of collectives
  // is not in them.
  uint64_t control_messages_sent = 0;
  uint64_t control_messages_received = 0;
  // What is under way now. A collective runs one entry, or several that are fused.
  uint64_t collectives_in_flight = 0;
  uint64_t bytes_in_flight = 0;  // this rank's tensors in them
  // Memory of this rank beside the tensors, of all process sets: fusion buffers, and what ops
  // convert into. It is kept for reuse, up to the limit. One batch that needs more gets it anyway.
  uint64_t scratch_bytes = 0;
  uint64_t scratch_bytes_peak = 0;   // the peaks of the sets, added up
  uint64_t scratch_bytes_limit = 0;  // without sets that have no limit
  // Memory of tensors that collectives work on in place: the gradients, in their buckets, and
  // tensors of shared_zeros().
  uint64_t bucket_bytes = 0;
};

struct StatisticName {
  std::string_view name;
  uint64_t Statistics::*field;
};

// Every field, in the order in which people read them.
inline constexpr std::array kStatisticNames = {
    StatisticName{"negotiated starts", &Statistics::negotiated_starts},
    StatisticName{"frozen starts", &Statistics::frozen_starts},
    StatisticName{"eager starts", &Statistics::eager_starts},
    StatisticName{"negotiated batches", &Statistics::negotiated_batches},
    StatisticName{"frozen batches", &Statistics::frozen_batches},
    StatisticName{"void starts", &Statistics::void_starts},
    StatisticName{"freezes", &Statistics::freezes},
    StatisticName{"thaws", &Statistics::thaws},
    StatisticName{"control messages sent", &Statistics::control_messages_sent},
    StatisticName{"control messages received", &Statistics::control_messages_received},
    StatisticName{"collectives in flight", &Statistics::collectives_in_flight},
    StatisticName{"bytes in flight", &Statistics::bytes_in_flight},
    StatisticName{"scratch bytes", &Statistics::scratch_bytes},
    StatisticName{"scratch bytes at peak", &Statistics::scratch_bytes_peak},
    StatisticName{"limit of scratch bytes", &Statistics::scratch_bytes_limit},
    StatisticName{"bucket bytes", &Statistics::bucket_bytes},
};
static_assert(sizeof(Statistics) == kStatisticNames.size() * sizeof(uint64_t),
              "each field has a name");

}  // namespace horon

#include "horon/core/host/local_group.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/host_name.h"
#include "horon/core/base/text.h"
#include "horon/core/host/mapped_group.h"
#include "horon/core/host/named_file.h"
#include "horon/core/host/open_files.h"
#include "horon/core/host/process_memory.h"
#include "horon/core/host/shared_heap.h"
#include "horon/core/host/shared_segment.h"

namespace horon::core {

namespace {

using Text = std::array<char, 256>;
constexpr auto kHost = Bootstrap::Among::Host;

// What every rank tells the others at the start. Each makes one segment: the first rank's holds
// doorbells and area, the others' are empty and serve the self test.
struct Introduction {
  int64_t process_id;
  int64_t descriptor;
  uint64_t generation;
  uint64_t area_bytes;
  uint64_t pid_namespace;  // a process number is unique only within one namespace
  uint64_t own;            // Own*, for ranks that are threads of one process
  ProcessProbe::Offer probe;
  Text failure;  // "" if all is well
};
struct Own {
  std::shared_ptr<SharedHeap> heap;
  std::shared_ptr<SharedSegment> home;
  std::optional<ProcessProbe> probe;
};
struct Verdict {
  Text failure;
  Text no_copies;  // why private memory can't be copied between processes
};

void set_text(Text& text, const std::string& value) {
  const size_t length = std::min(value.size(), text.size() - 1);
  text.fill(0);
  std::memcpy(text.data(), value.data(), length);
}

uint64_t pid_namespace() {
  struct stat status {};
  if (stat("/proc/self/ns/pid", &status) != 0) {
    throw Error(ErrorCode::OperationFailed, concat("/proc/self/ns/pid: ", std::strerror(errno)));
  }
  return status.st_ino;
}

struct Reached {
  std::vector<MappedGroup::Peer> peers;
  std::shared_ptr<SharedSegment> home;  // of local rank 0
};

// The self test: opens every peer's segment; one that can't be reached throws.
Reached reach_peers(int local_rank, Reach reach, const std::vector<Introduction>& ranks,
                    const Own& own) {
  Reached reached;
  const Introduction& me = ranks[static_cast<size_t>(local_rank)];
  for (const Introduction& rank : ranks) {
    MappedGroup::Peer& peer = reached.peers.emplace_back();
    peer.process_id = static_cast<int>(rank.process_id);
    std::shared_ptr<SharedSegment> home;
    // Peers are watched by their process number.
    if (reach == Reach::ByName && rank.pid_namespace != me.pid_namespace) {
      throw Error(ErrorCode::OperationFailed,
                  concat("process ", rank.process_id, " is in another PID namespace"));
    }
    if (&rank == &me) {
      peer.heap = own.heap;
      home = own.home;
    } else if (rank.process_id == me.process_id && rank.pid_namespace == me.pid_namespace) {
      // Threads of one process use the same addresses, so that race detectors see through them. The
      // owner stays in create() until all have read this.
      const Own& sibling = *reinterpret_cast<const Own*>(rank.own);
      peer.heap = sibling.heap;
      home = sibling.home;
    } else {
      home = std::make_shared<SharedSegment>(SharedSegment::open(
          reach, peer.process_id, static_cast<int>(rank.descriptor), rank.generation));
    }
    if (reached.home == nullptr) reached.home = std::move(home);
  }
  return reached;
}

// Why ranks can't copy between each other's private memory; "" if this one can.
std::string try_copies(int local_rank, const Reached& reached,
                       const std::vector<Introduction>& ranks, const Own& own) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const MappedGroup::Peer& peer = reached.peers[rank];
    if (peer.heap != nullptr) continue;  // this process
    std::string fault = own.probe->try_copies(peer.process_id, ranks[rank].probe, local_rank);
    if (!fault.empty()) return fault;
  }
  return "";
}

template <class Record>
std::string first_of(const std::vector<Record>& records, Text Record::*text) {
  for (size_t i = 0; i < records.size(); ++i) {
    const Text& told = records[i].*text;
    if (told[0] != 0) return concat("local rank ", i, ": ", std::string(told.data()));
  }
  return "";
}

void require_equal_areas(const std::vector<Introduction>& ranks) {
  for (size_t i = 1; i < ranks.size(); ++i) {
    if (ranks[i].area_bytes == ranks[0].area_bytes) continue;
    throw Error(ErrorCode::Config, concat("local ranks 0 and ", i,
                                          " share areas of different sizes: ", ranks[0].area_bytes,
                                          " and ", ranks[i].area_bytes, " bytes"));
  }
}

struct Wanted {
  size_t area_bytes = 0;
  LocalGroup::ProcessCopies copies = LocalGroup::ProcessCopies::Off;
  Reach reach = Reach::ByProcess;
};

Introduction introduce(Own& own, const Topology& topology, const Wanted& wanted) {
  const auto local_size = static_cast<size_t>(topology.local_size);
  const size_t home_bytes =
      topology.local_rank == 0 ? sizeof(Doorbell) * local_size + wanted.area_bytes : 0;
  Introduction me{};
  me.process_id = getpid();
  me.area_bytes = wanted.area_bytes;
  me.own = reinterpret_cast<uint64_t>(&own);
  try {
    const std::string fault = wanted.reach == Reach::ByName ? why_no_named_files() : "";
    if (!fault.empty()) throw Error(ErrorCode::Limit, fault);
    me.pid_namespace = pid_namespace();
    me.probe = own.probe.emplace(topology.local_size).offer();
    own.heap = std::make_shared<SharedHeap>(SharedHeap::cached_bytes_max(topology.local_size),
                                            wanted.reach);
    own.home = std::make_shared<SharedSegment>(SharedSegment::create(home_bytes, wanted.reach));
    me.descriptor = own.home->descriptor();
    me.generation = own.home->generation();
  } catch (const std::exception& error) {
    set_text(me.failure, error.what());
  }
  return me;
}

// Null: `reason` says why. The same on all ranks.
std::unique_ptr<LocalGroup> try_to_meet(const Bootstrap& bootstrap, const Wanted& wanted,
                                        std::string& reason) {
  const int local_rank = bootstrap.topology().local_rank;
  Own own;
  const Introduction me = introduce(own, bootstrap.topology(), wanted);
  const std::vector<Introduction> ranks = allgather_values(bootstrap, kHost, me);
  require_equal_areas(ranks);

  reason = first_of(ranks, &Introduction::failure);
  Verdict verdict{};
  Reached reached;
  if (reason.empty()) {
    try {
      reached = reach_peers(local_rank, wanted.reach, ranks, own);
      if (wanted.copies == LocalGroup::ProcessCopies::IfAllowed) {
        set_text(verdict.no_copies, try_copies(local_rank, reached, ranks, own));
      }
    } catch (const std::exception& error) {
      set_text(verdict.failure, error.what());
    }
  }
  // This is a barrier too: every rank keeps its segment open until all ranks have mapped it.
  const std::vector<Verdict> verdicts = allgather_values(bootstrap, kHost, verdict);
  if (reason.empty()) reason = first_of(verdicts, &Verdict::failure);
  if (!reason.empty()) return nullptr;
  const std::string no_copies = wanted.copies == LocalGroup::ProcessCopies::Off
                                    ? "HORON_CMA=off"
                                    : first_of(verdicts, &Verdict::no_copies);
  for (MappedGroup::Peer& peer : reached.peers) {
    if (peer.heap == nullptr) peer.watch = ProcessWatch(peer.process_id);
  }
  return std::make_unique<MappedGroup>(
      MappedGroup::Parts{local_rank, bootstrap.topology().local_ranks, std::move(reached.peers),
                         wanted.reach, std::move(reached.home), no_copies});
}

}  // namespace

std::unique_ptr<LocalGroup> LocalGroup::create(const Bootstrap& bootstrap, size_t area_bytes,
                                               ProcessCopies copies) {
  allow_more_open_files();
  const Topology& topology = bootstrap.topology();
  if (topology.local_size == 1) copies = ProcessCopies::Off;
  if (copies == ProcessCopies::IfAllowed) allow_process_copies();
  std::string by_process;
  std::string by_name;
  auto group = try_to_meet(bootstrap, {area_bytes, copies, Reach::ByProcess}, by_process);
  if (group != nullptr) return group;
  (void)remove_abandoned_files();
  group = try_to_meet(bootstrap, {area_bytes, copies, Reach::ByName}, by_name);
  if (group != nullptr) return group;
  return create_unavailable(topology.local_rank, topology.local_size,
                            concat(by_process, "; by way of /dev/shm, ", by_name));
}

void LocalGroup::ring_all_others() noexcept {
  if (!available()) return;
  for (int i = 0; i < local_size(); ++i) {
    if (i != local_rank()) doorbell(i).ring();
  }
}

std::string name_of_process(int rank, int process_id) {
  return concat("rank ", rank, " (pid ", process_id, " on host ", host_name(), ")");
}

}  // namespace horon::core

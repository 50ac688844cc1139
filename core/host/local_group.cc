#include "horon/core/host/local_group.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <map>
#include <poll.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/core/base/host_name.h"
#include "horon/core/base/text.h"
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

// Move-only owner of the descriptor by which the kernel tells that a process has ended.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  // An old kernel has none: then descriptor() is -1, which poll() ignores, and deaths show as
  // silence only.
  explicit ProcessWatch(int process_id)
      : descriptor_(static_cast<int>(syscall(SYS_pidfd_open, process_id, 0))) {}
  ProcessWatch(ProcessWatch&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  ProcessWatch& operator=(ProcessWatch&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~ProcessWatch() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_ = -1;
};

struct Peer {
  int process_id = 0;
  std::shared_ptr<SharedHeap> heap;  // set if the peer is this rank or a thread of this process
  ProcessWatch watch;
};

// /proc/PID/exe is gone as soon as a process begins to exit: before its descriptors close, and
// before its pidfd reports it.
bool is_ending(int process_id) {
  const std::string program = concat("/proc/", process_id, "/exe");
  std::array<char, 1> start{};
  return readlink(program.c_str(), start.data(), start.size()) < 0 && errno == ENOENT;
}

class MappedGroup final : public LocalGroup {
 public:
  // `ranks`: [local rank] -> the rank that errors name.
  MappedGroup(int local_rank, std::vector<int> ranks, std::vector<Peer> peers,
              std::shared_ptr<SharedSegment> home, std::string no_copies_reason)
      : rank_(local_rank),
        ranks_(std::move(ranks)),
        peers_(std::move(peers)),
        no_copies_reason_(std::move(no_copies_reason)),
        home_(std::move(home)),
        base_(home_->data()) {
    for (const Peer& peer : peers_) {
      polls_.push_back({peer.watch.descriptor(), POLLIN, 0});
    }
  }

  int local_rank() const override { return rank_; }
  int local_size() const override { return static_cast<int>(peers_.size()); }
  bool available() const override { return true; }
  std::string unavailable_reason() const override { return ""; }

  Doorbell& doorbell(int local_rank) override {
    HORON_CHECK(local_rank >= 0 && local_rank < local_size(), "local rank");
    return reinterpret_cast<Doorbell*>(base_)[local_rank];
  }
  std::byte* area() override { return base_ + sizeof(Doorbell) * peers_.size(); }

  std::shared_ptr<std::byte> allocate(size_t bytes) override {
    return heap().allocate(bytes, true);
  }
  std::shared_ptr<std::byte> allocate_scratch(size_t bytes) override {
    return heap().allocate(bytes, false);
  }
  std::shared_ptr<std::byte> allocate_reused(size_t bytes) override {
    return heap().allocate_reused(bytes);
  }
  std::optional<SharedAddress> locate(const std::byte* data, size_t bytes) const override {
    return heap().locate(data, bytes);
  }

  std::byte* map(int local_rank, const SharedAddress& address) override {
    const Peer& peer = peers_.at(static_cast<size_t>(local_rank));
    if (peer.heap != nullptr) {
      std::byte* const found = peer.heap->find(address);
      HORON_CHECK(found != nullptr, "the address is one of this process");
      return found;
    }
    SharedSegment& segment = mapped_[{local_rank, address.segment}];
    if (segment.data() == nullptr || segment.generation() != address.generation) {
      segment = SharedSegment();  // the descriptor is another segment's now
      segment = open_segment(local_rank, address);
    }
    HORON_CHECK(address.offset <= segment.bytes(), "the offset lies in the segment");
    return segment.data() + address.offset;
  }

  bool copies_between_processes() const override { return no_copies_reason_.empty(); }
  std::string no_copies_reason() const override { return no_copies_reason_; }

  // Threads of one process copy by themselves, so that race detectors see it.
  void read(int local_rank, std::byte* to, uint64_t address, size_t bytes) override {
    const Peer& peer = peers_.at(static_cast<size_t>(local_rank));
    if (peer.heap != nullptr) {
      return copy_bytes(to, reinterpret_cast<const std::byte*>(address), bytes);
    }
    require_copied(local_rank, read_process(peer.process_id, to, address, bytes));
  }
  void write(int local_rank, uint64_t address, const std::byte* from, size_t bytes) override {
    const Peer& peer = peers_.at(static_cast<size_t>(local_rank));
    if (peer.heap != nullptr) {
      return copy_bytes(reinterpret_cast<std::byte*>(address), from, bytes);
    }
    require_copied(local_rank, write_process(peer.process_id, address, from, bytes));
  }

  std::vector<int> dead_local_ranks() override {
    std::vector<int> dead;
    if (poll(polls_.data(), polls_.size(), 0) <= 0) return dead;
    for (size_t i = 0; i < polls_.size(); ++i) {
      if (polls_[i].revents != 0) dead.push_back(static_cast<int>(i));
    }
    return dead;
  }
  int process_id(int local_rank) const override {
    return peers_.at(static_cast<size_t>(local_rank)).process_id;
  }

 private:
  SharedHeap& heap() const { return *peers_[static_cast<size_t>(rank_)].heap; }

  SharedSegment open_segment(int local_rank, const SharedAddress& address) {
    const int process_id = this->process_id(local_rank);
    try {
      return SharedSegment::open(process_id, static_cast<int>(address.segment), address.generation);
    } catch (const Error&) {
      if (!has_died(local_rank)) throw;
    }
    throw_dead(local_rank);
  }
  void require_copied(int local_rank, int error) {
    if (error == 0) return;
    if (error == ESRCH || has_died(local_rank)) throw_dead(local_rank);
    throw Error(ErrorCode::OperationFailed,
                concat("memory of ", name_of(local_rank), " can't be copied: ",
                       std::strerror(error), "; HORON_CMA=off copies it by way of shared memory"));
  }
  [[noreturn]] void throw_dead(int local_rank) const {
    throw Error(ErrorCode::PeerDead, concat(name_of(local_rank), " has died"));
  }
  std::string name_of(int local_rank) const {
    return name_of_process(ranks_.at(static_cast<size_t>(local_rank)), process_id(local_rank));
  }
  bool has_died(int local_rank) {
    const std::vector<int> dead = dead_local_ranks();
    return std::find(dead.begin(), dead.end(), local_rank) != dead.end() ||
           is_ending(process_id(local_rank));
  }

  const int rank_;
  const std::vector<int> ranks_;
  const std::vector<Peer> peers_;
  const std::string no_copies_reason_;
  const std::shared_ptr<SharedSegment> home_;  // of local rank 0
  std::byte* const base_;                      // doorbells, then the area
  std::map<std::pair<int, uint64_t>, SharedSegment> mapped_;
  std::vector<pollfd> polls_;
};

struct Reached {
  std::vector<Peer> peers;
  std::shared_ptr<SharedSegment> home;  // of local rank 0
};

// The self test: opens every peer's segment; one that can't be reached throws.
Reached reach_peers(int local_rank, const std::vector<Introduction>& ranks, const Own& own) {
  Reached reached;
  const Introduction& me = ranks[static_cast<size_t>(local_rank)];
  for (const Introduction& rank : ranks) {
    Peer& peer = reached.peers.emplace_back();
    peer.process_id = static_cast<int>(rank.process_id);
    std::shared_ptr<SharedSegment> home;
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
      home = std::make_shared<SharedSegment>(
          SharedSegment::open(peer.process_id, static_cast<int>(rank.descriptor), rank.generation));
    }
    if (reached.home == nullptr) reached.home = std::move(home);
  }
  return reached;
}

// Why ranks can't copy between each other's private memory; "" if this one can.
std::string try_copies(int local_rank, const Reached& reached,
                       const std::vector<Introduction>& ranks, const Own& own) {
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const Peer& peer = reached.peers[rank];
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

Introduction introduce(Own& own, int local_size, size_t home_bytes, size_t area_bytes) {
  Introduction me{};
  me.process_id = getpid();
  me.area_bytes = area_bytes;
  me.own = reinterpret_cast<uint64_t>(&own);
  try {
    me.pid_namespace = pid_namespace();
    me.probe = own.probe.emplace(local_size).offer();
    own.heap = std::make_shared<SharedHeap>();
    own.home = std::make_shared<SharedSegment>(SharedSegment::create(home_bytes));
    me.descriptor = own.home->descriptor();
    me.generation = own.home->generation();
  } catch (const std::exception& error) {
    set_text(me.failure, error.what());
  }
  return me;
}

}  // namespace

std::unique_ptr<LocalGroup> LocalGroup::create(const Bootstrap& bootstrap, size_t area_bytes,
                                               ProcessCopies copies) {
  allow_more_open_files();
  const int local_rank = bootstrap.topology().local_rank;
  const int local_size = bootstrap.topology().local_size;
  const size_t home_bytes =
      local_rank == 0 ? sizeof(Doorbell) * static_cast<size_t>(local_size) + area_bytes : 0;
  if (local_size == 1) copies = ProcessCopies::Off;
  if (copies == ProcessCopies::IfAllowed) allow_process_copies();
  Own own;
  const Introduction me = introduce(own, local_size, home_bytes, area_bytes);
  const std::vector<Introduction> ranks = allgather_values(bootstrap, kHost, me);
  require_equal_areas(ranks);

  std::string reason = first_of(ranks, &Introduction::failure);
  Verdict verdict{};
  Reached reached;
  if (reason.empty()) {
    try {
      reached = reach_peers(local_rank, ranks, own);
      if (copies == ProcessCopies::IfAllowed) {
        set_text(verdict.no_copies, try_copies(local_rank, reached, ranks, own));
      }
    } catch (const std::exception& error) {
      set_text(verdict.failure, error.what());
    }
  }
  // This is a barrier too: every rank keeps its segment open until all ranks have mapped it.
  const std::vector<Verdict> verdicts = allgather_values(bootstrap, kHost, verdict);
  if (reason.empty()) reason = first_of(verdicts, &Verdict::failure);
  const std::string no_copies =
      copies == ProcessCopies::Off ? "HORON_CMA=off" : first_of(verdicts, &Verdict::no_copies);
  if (!reason.empty()) return create_unavailable(local_rank, local_size, reason);
  for (Peer& peer : reached.peers) {
    if (peer.heap == nullptr) peer.watch = ProcessWatch(peer.process_id);
  }
  return std::make_unique<MappedGroup>(local_rank, bootstrap.topology().local_ranks,
                                       std::move(reached.peers), std::move(reached.home),
                                       no_copies);
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

#include "horon/tests/support/host_gpu/host_nccl.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <mutex>
#include <optional>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/tests/support/host_gpu/host_ring.h"
#include "horon/tests/support/host_gpu/nans_as_nccl.h"
#include "horon/tests/support/long_enough.h"

namespace horon::test {
namespace {

void wait_until_none(const std::atomic<int>& count) {
  while (count > 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

struct Meeting {
  std::atomic<int> here{0};
  std::atomic<int> finalized{0};
  WindowMeeting window;
};

}  // namespace

struct HostNccl::Comm {
  Comm(int given_size, int given_rank, std::string given_path, HostWindowMemory& windows)
      : size(given_size), rank(given_rank), path(std::move(given_path)) {
    bytes = kRingsAt + static_cast<size_t>(size * size) * sizeof(HostRing);
    const int file = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    HORON_CHECK(file >= 0 && ::ftruncate(file, static_cast<off_t>(bytes)) == 0, path);
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    HORON_CHECK(memory != MAP_FAILED, path);
    ++meeting().here;  // a new file is zero, and so is a Meeting at first
    window.emplace(windows, meeting().window, size);
  }
  ~Comm() {
    window.reset();
    ::munmap(memory, bytes);
    forget_name();
  }
  // No rank needs the name once all ranks are here. Without a name, a rank that is killed leaves
  // nothing behind.
  void forget_name() {
    if (!std::exchange(forgotten, true)) ::unlink(path.c_str());
  }
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // As NCCL, which refuses all calls but idle() and abort() until the last call has ended.
  void require_settled() const {
    if (settled) return;
    throw Error(ErrorCode::OperationFailed,
                "the communicator is used before its last call has ended");
  }
  bool is_finalized() const { return finalizing && meeting().finalized >= size; }
  Meeting& meeting() const { return *static_cast<Meeting*>(memory); }
  HostRing& ring(int from, int to) const {
    auto* const rings = reinterpret_cast<HostRing*>(static_cast<std::byte*>(memory) + kRingsAt);
    return rings[from * size + to];
  }

  static constexpr size_t kRingsAt = 256;
  static_assert(sizeof(Meeting) <= kRingsAt);
  const int size;
  const int rank;
  const std::string path;
  std::optional<HostWindow> window;
  uint64_t calls = 0;       // groups
  uint64_t allreduces = 0;  // whose kernels have ended
  size_t bytes = 0;
  void* memory = nullptr;
  int busy_polls = 0;
  bool forgotten = false;
  bool settled = false;  // idle() has said so since the last call
  bool finalizing = false;
  std::atomic<bool> failed{false};
  std::atomic<bool> aborted{false};
  std::atomic<int> kernels{0};   // that are enqueued and have not ended
  std::atomic<int> captured{0};  // in graphs that are still there
};

// The kernel that runs on a device which one kernel fills: the one whose stream reached it first.
class HostNccl::Device {
 public:
  explicit Device(bool one_at_a_time) : one_at_a_time_(one_at_a_time) {}

  bool enter(const Group* kernel) {
    if (!one_at_a_time_) return true;
    const std::lock_guard lock(mutex_);
    if (running_ == nullptr) {
      running_ = kernel;
      since_ = Clock::now();
    }
    return running_ == kernel;
  }
  void leave(const Group* kernel) {
    const std::lock_guard lock(mutex_);
    if (running_ == kernel) running_ = nullptr;
  }
  // Kernels of two devices that wait for each other would do so for ever; a test has to end.
  bool is_stuck() {
    const std::lock_guard lock(mutex_);
    return running_ != nullptr && Clock::now() - since_ > kLongEnough;
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool one_at_a_time_;
  std::mutex mutex_;
  const Group* running_ = nullptr;
  Clock::time_point since_;
};

HostNccl::HostNccl(std::shared_ptr<HostCuda> cuda, Options options)
    : cuda_(std::move(cuda)),
      options_(std::move(options)),
      device_(std::make_shared<Device>(options_.fills_device)) {}
HostNccl::~HostNccl() = default;

ops::NcclUniqueId HostNccl::unique_id() {
  static std::atomic<int> made{0};
  // Not in /dev/shm, where other tests look for what a job has left.
  // A later one is less than an earlier one, as it may be where ids are made by chance.
  const std::string name =
      "horon_host_nccl_" + std::to_string(::getpid()) + "_" + std::to_string(999'999 - made++);
  const std::string path = std::filesystem::temp_directory_path() / name;
  ::unlink(path.c_str());
  ops::NcclUniqueId id{};
  std::copy(path.begin(), path.end(), id.begin());
  return id;
}

void HostNccl::require_current_device() const {
  if (HostCuda::current_device() == cuda_->device()) return;
  throw Error(ErrorCode::Internal, "the device is not the current one of this thread");
}

ops::NcclComm HostNccl::begin_init(int size, const ops::NcclUniqueId& id, int rank) {
  require_current_device();
  {
    const std::lock_guard lock(used_ids_mutex_);
    if (!used_ids_.insert(id).second) {
      throw Error(ErrorCode::OperationFailed, "the id has been used before");
    }
  }
  auto* const comm = new Comm(size, rank, id.data(), windows_);
  comm->busy_polls = options_.busy_polls;
  return comm;
}

bool HostNccl::idle(ops::NcclComm handle) {
  Comm& comm = as_comm(handle);
  if (comm.failed || has_failed_)
    throw Error(ErrorCode::OperationFailed, "the NCCL of threads has failed");
  if (comm.finalizing) return comm.is_finalized();
  if (comm.meeting().here < comm.size) return false;
  comm.forget_name();
  if (!comm.window->is_registered()) return false;
  comm.settled = comm.settled || comm.busy_polls-- <= 0;
  return comm.settled;
}

void HostNccl::begin_finalize(ops::NcclComm handle) {
  require_current_device();
  Comm& comm = as_comm(handle);
  comm.require_settled();
  wait_until_none(comm.kernels);
  comm.finalizing = true;
  ++comm.meeting().finalized;
}

void HostNccl::wait_until_an_end_may_return() const {
  while (options_.end_may_return && !options_.end_may_return()) {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
}

void HostNccl::destroy(ops::NcclComm comm) noexcept {
  wait_until_an_end_may_return();
  wait_until_none(as_comm(comm).captured);  // as NCCL does
  if (as_comm(comm).window->is_there()) {
    windows_.complain("a communicator is destroyed that has a window");
  }
  if (!as_comm(comm).is_finalized()) {
    windows_.complain("a communicator is destroyed that is not finalized");
  }
  delete &as_comm(comm);
}

void HostNccl::abort(ops::NcclComm handle) noexcept {
  Comm& comm = as_comm(handle);
  comm.aborted = true;
  comm.window->leave();
  wait_until_an_end_may_return();
  wait_until_none(comm.kernels);
  wait_until_none(comm.captured);
  delete &comm;
}

std::byte* HostNccl::allocate(size_t bytes) {
  require_current_device();
  return options_.window_fault == WindowFault::NoMemory ? nullptr : windows_.allocate(bytes);
}

void HostNccl::begin_register(ops::NcclComm handle, std::byte* memory, size_t bytes,
                              ops::NcclWindowHandle* window) {
  require_current_device();
  Comm& comm = as_comm(handle);
  comm.require_settled();
  comm.settled = false;
  comm.busy_polls = options_.busy_polls;
  comm.window->begin(memory, bytes, window, comm.calls, options_.window_fault);
}

void HostNccl::deregister(ops::NcclComm comm, ops::NcclWindowHandle handle) noexcept {
  as_comm(comm).window->deregister(handle);
}

void HostNccl::begin_group() {
  require_current_device();
  group_ = Group();
}

HostNccl::Group& HostNccl::open_group(ops::NcclComm comm, ops::CudaStream stream) {
  group_.comm = &as_comm(comm);
  group_.comm->require_settled();
  group_.stream = stream;
  return group_;
}

void HostNccl::end_group() {
  Group group = std::exchange(group_, Group());
  if (group.comm == nullptr) return;  // no calls
  Comm& comm = *group.comm;
  comm.busy_polls = options_.busy_polls;
  comm.settled = false;
  ++comm.calls;
  if (groups_++ == options_.fails_at_group) {
    comm.failed = true;
    return;
  }
  std::atomic<int>& count = HostCuda::is_captured(group.stream) ? comm.captured : comm.kernels;
  ++count;
  const std::shared_ptr<Group> shared(
      new Group(std::move(group)), [device = device_, &count](Group* ended) {
        --count;  // also where the device has failed before it came to this one
        device->leave(ended);
        delete ended;
      });
  cuda_->enqueue(shared->stream, [shared, cuda = cuda_, device = device_] {
    if (shared->comm->aborted) return true;
    if (device->enter(shared.get())) {
      const bool has_ended = move_on(*shared->comm, *shared);
      if (has_ended) device->leave(shared.get());
      return has_ended;
    }
    if (device->is_stuck()) cuda->fail();
    return false;
  });
}

// Data between two ranks arrives in the order of their calls. True: all is done.
bool HostNccl::move_on(Comm& comm, Group& group) {
  std::vector<bool> sending(static_cast<size_t>(comm.size));
  std::vector<bool> receiving(static_cast<size_t>(comm.size));
  bool over = true;
  for (Transfer& transfer : group.transfers) {
    if (transfer.done == transfer.bytes) continue;
    std::vector<bool>& busy = transfer.to == nullptr ? sending : receiving;
    over = false;
    if (busy[static_cast<size_t>(transfer.peer)]) continue;
    const size_t left = transfer.bytes - transfer.done;
    transfer.done +=
        transfer.to == nullptr
            ? comm.ring(comm.rank, transfer.peer).put(transfer.from + transfer.done, left)
            : comm.ring(transfer.peer, comm.rank).take(transfer.to + transfer.done, left);
    busy[static_cast<size_t>(transfer.peer)] = transfer.done < transfer.bytes;
  }
  if (!over) return false;
  for (const auto& finish : group.finish) finish();
  for (Transfer& transfer : group.transfers) transfer.done = 0;  // for the next launch of a graph
  return true;
}

void HostNccl::add_send(Group& group, const std::byte* data, size_t bytes, int to) {
  group.transfers.push_back({to, nullptr, data, bytes, 0});
}
void HostNccl::add_receive(Group& group, std::byte* data, size_t bytes, int from) {
  group.transfers.push_back({from, data, nullptr, bytes, 0});
}

void HostNccl::send(ops::NcclComm comm, const std::byte* data, int64_t bytes, int to,
                    ops::CudaStream stream) {
  add_send(open_group(comm, stream), data, static_cast<size_t>(bytes), to);
}

void HostNccl::receive(ops::NcclComm comm, std::byte* data, int64_t bytes, int from,
                       ops::CudaStream stream) {
  add_receive(open_group(comm, stream), data, static_cast<size_t>(bytes), from);
}

void HostNccl::broadcast(ops::NcclComm handle, const std::byte* input, std::byte* output,
                         int64_t bytes, int root, ops::CudaStream stream) {
  Group& group = open_group(handle, stream);
  const Comm& comm = as_comm(handle);
  const auto size = static_cast<size_t>(bytes);
  if (comm.rank == root) {
    for (int rank = 0; rank < comm.size; ++rank) add_send(group, input, size, rank);
  }
  // In place the root sends and receives the same bytes, which changes nothing.
  add_receive(group, output, size, root);
}

void HostNccl::allgather(ops::NcclComm comm, const std::byte* input, std::byte* output,
                         int64_t bytes, ops::CudaStream stream) {
  const int size = as_comm(comm).size;
  for (int root = 0; root < size; ++root) {
    broadcast(comm, input, output + root * bytes, bytes, root, stream);
  }
}

void HostNccl::add_reduction(ops::NcclComm handle, const std::byte* input, std::byte* output,
                             int64_t count, DataType dtype, ReduceOp op, int root,
                             ops::CudaStream stream) {
  Group& group = open_group(handle, stream);
  const Comm& comm = as_comm(handle);
  const size_t bytes = static_cast<size_t>(count) * size_of(dtype);
  for (int rank = 0; rank < comm.size; ++rank) {
    if (root < 0 || root == rank) add_send(group, input, bytes, rank);
  }
  if (root >= 0 && root != comm.rank) return;
  const auto all = std::make_shared<std::vector<std::byte>>(bytes * static_cast<size_t>(comm.size));
  group.memory.push_back(all);
  for (int rank = 0; rank < comm.size; ++rank) {
    add_receive(group, all->data() + static_cast<size_t>(rank) * bytes, bytes, rank);
  }
  group.finish.emplace_back([=, &comm = as_comm(handle), ranks = comm.size] {
    if (root < 0 && !comm.window->agrees(comm.allreduces++, input)) comm.failed = true;
    std::vector<const std::byte*> inputs;
    for (int rank = 0; rank < ranks; ++rank) {
      inputs.push_back(all->data() + static_cast<size_t>(rank) * bytes);
    }
    std::byte* to = output;
    if (is_floating(dtype) && (op == ReduceOp::Min || op == ReduceOp::Max)) {
      replace_nans(dtype, all->data(), static_cast<size_t>(ranks), static_cast<size_t>(count));
    }
    ops::reduce_many({dtype, op, 1.0, 1.0, 1}, inputs, {&to, 1}, count);
  });
}

void HostNccl::allreduce(ops::NcclComm comm, const std::byte* input, std::byte* output,
                         int64_t count, DataType dtype, ReduceOp op, ops::CudaStream stream) {
  add_reduction(comm, input, output, count, dtype, op, -1, stream);
}

void HostNccl::reduce(ops::NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                      DataType dtype, ReduceOp op, int root, ops::CudaStream stream) {
  add_reduction(comm, input, output, count, dtype, op, root, stream);
}

void HostNccl::reduce_scatter(ops::NcclComm comm, const std::byte* input, std::byte* output,
                              int64_t count, DataType dtype, ReduceOp op, ops::CudaStream stream) {
  const int size = as_comm(comm).size;
  const auto block = static_cast<int64_t>(size_of(dtype)) * count;
  for (int root = 0; root < size; ++root) {
    add_reduction(comm, input + root * block, output, count, dtype, op, root, stream);
  }
}

}  // namespace horon::test

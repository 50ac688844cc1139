#include "horon/core/execution/executor.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "horon/core/base/text.h"
#include "horon/core/base/timeline.h"
#include "horon/core/execution/neutral.h"

namespace horon::core {

// Fusion buffers, kept for reuse: fresh memory costs page faults.
class Executor::Scratch {
 public:
  struct Buffer {
    std::shared_ptr<std::byte> memory;
    size_t capacity = 0;
  };

  explicit Scratch(Parts& parts) : parts_(parts) {}

  MemoryDomain& domain(DeviceKind device) {
    for (const auto& domain : parts_.domains) {
      if (domain->device() == device) return *domain;
    }
    throw Error(ErrorCode::Config,
                concat("this build has no support for ", to_string(device), " memory"));
  }

  Buffer take(DeviceKind device, size_t bytes) {
    auto& free = free_[static_cast<size_t>(device)];
    const auto fits = std::find_if(free.begin(), free.end(),
                                   [&](const Buffer& buffer) { return buffer.capacity >= bytes; });
    if (fits == free.end()) {
      const size_t capacity = std::bit_ceil(std::max(bytes, kSmallest));
      return {domain(device).allocate(capacity), capacity};
    }
    Buffer buffer = std::move(*fits);
    free.erase(fits);
    return buffer;
  }

  void give_back(DeviceKind device, Buffer buffer) {
    auto& free = free_[static_cast<size_t>(device)];
    free.push_back(std::move(buffer));
    if (free.size() > kKept) free.erase(free.begin());
  }

 private:
  static constexpr size_t kSmallest = 64 << 10;
  static constexpr size_t kKept = 4;
  Parts& parts_;
  std::vector<Buffer> free_[kDeviceKindCount];
};

// One batch on its way: tensors ready -> packed -> op started -> op done -> unpacked.
class Executor::Running {
 public:
  Running(BatchWork work, Parts& parts, Scratch& scratch)
      : work_(std::move(work)),
        parts_(parts),
        scratch_(scratch),
        spec_owner_(work_.entries[0].spec),
        spec_(*spec_owner_) {
    began_ = Timeline::Clock::now();
  }
  ~Running() {
    if (scratch_buffer_.memory) scratch_.give_back(spec_.device, std::move(scratch_buffer_));
  }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  bool started() const { return stage_ > Stage::Packed; }

  // `may_start`: all earlier batches have started their ops.
  Progress step(bool may_start) {
    switch (stage_) {
      case Stage::Waiting:
        if (!tensors_ready()) return Progress::Polling;
        lay_out();
        copy_ = pack();
        stage_ = Stage::Packing;
        return Progress::Advanced;
      case Stage::Packing:
        if (copy_ != nullptr && !copy_->done()) return Progress::Polling;
        stage_ = Stage::Packed;
        [[fallthrough]];
      case Stage::Packed:
        if (!may_start) return Progress::Ringing;  // moves when the batch before it does
        start();
        return Progress::Advanced;
      case Stage::Flying: {
        const Progress progress = flight_->step();
        if (progress != Progress::Done) return progress;
        flight_.reset();
        copy_ = unpack();
        stage_ = Stage::Unpacking;
        return Progress::Advanced;
      }
      case Stage::Unpacking:
        if (copy_ != nullptr && !copy_->done()) return Progress::Polling;
        stage_ = Stage::Finished;
        note();
        return Progress::Done;
      case Stage::Finished:
        break;
    }
    return Progress::Done;
  }

  FinishedBatch finish(std::optional<Error> error) {
    return {work_.sequence, std::move(work_.entries), std::move(error)};
  }

  // The op may still write its memory: leaves it to the process.
  void leak() {
    (void)flight_.release();
    (void)copy_.release();
    if (scratch_buffer_.memory) new std::shared_ptr<std::byte>(std::move(scratch_buffer_.memory));
  }

 private:
  enum class Stage : uint8_t { Waiting, Packing, Packed, Flying, Unpacking, Finished };

  bool tensors_ready() {
    return std::all_of(work_.entries.begin(), work_.entries.end(), [](EntryWork& entry) {
      return entry.ready == nullptr || entry.ready->ready();
    });
  }

  // Decides where the op works: directly on the one stretch of memory that there is, or in a fusion
  // buffer.
  void lay_out() {
    batch_.sequence = work_.sequence;
    batch_.kind = spec_.kind;
    batch_.dtype = spec_.dtype;
    batch_.reduce_op = spec_.reduce_op;
    batch_.device = spec_.device;
    batch_.root = spec_.root;
    batch_.prescale = spec_.prescale;
    batch_.postscale = spec_.postscale;
    if (spec_.reduce_op == ReduceOp::Average) batch_.divisor = work_.contributors;
    if (spec_.kind == CollectiveKind::Barrier) return;
    if (spec_.kind == CollectiveKind::Allgather) return lay_out_allgather();
    for (const EntryWork& entry : work_.entries) batch_.count += element_count(*entry.spec);
    const EntryWork& first = work_.entries.front();
    if (work_.entries.size() == 1 && first.mine && first.memory.size() == 1) {
      batch_.input = first.memory[0].input;
      batch_.output = first.memory[0].output;
      return;
    }
    const size_t bytes = static_cast<size_t>(batch_.count) * size_of(spec_.dtype);
    scratch_buffer_ = scratch_.take(spec_.device, bytes);
    batch_.input = scratch_buffer_.memory.get();
    batch_.output = scratch_buffer_.memory.get();
  }

  void lay_out_allgather() {
    EntryWork& entry = work_.entries.front();
    batch_.counts = entry.counts;
    batch_.count = batch_.counts.at(static_cast<size_t>(parts_.rank));
    int64_t total = 0;
    for (const int64_t count : batch_.counts) total += count;
    if (!entry.mine) {
      const size_t bytes = static_cast<size_t>(total) * size_of(spec_.dtype);
      scratch_buffer_ = scratch_.take(spec_.device, bytes);
      batch_.output = scratch_buffer_.memory.get();
      return;
    }
    batch_.input = entry.memory.front().input;
    batch_.output = entry.allocate_output(total);
  }

  bool packed() const {
    return scratch_buffer_.memory != nullptr && spec_.kind != CollectiveKind::Allgather;
  }

  // Calls visit(part, place in the fusion buffer, bytes) for all memory of this rank.
  template <class Visit>
  void for_each_part(const Visit& visit) {
    std::byte* place = scratch_buffer_.memory.get();
    for (const EntryWork& entry : work_.entries) {
      if (!entry.mine) {
        place += static_cast<size_t>(element_count(*entry.spec)) * size_of(spec_.dtype);
        continue;
      }
      for (const MemoryPart& part : entry.memory) {
        const size_t bytes = static_cast<size_t>(part.count) * size_of(spec_.dtype);
        visit(part, place, bytes);
        place += bytes;
      }
    }
  }

  std::unique_ptr<PendingCopy> pack() {
    if (!packed()) return nullptr;
    std::vector<CopyItem> items;
    if (!work_.entries.front().mine) {  // joined: the same for every entry of the batch
      neutral_.resize(static_cast<size_t>(batch_.count) * size_of(spec_.dtype));
      fill_neutral(neutral_, spec_.dtype, spec_.reduce_op);
      items.push_back({neutral_.data(), scratch_buffer_.memory.get(), neutral_.size()});
    }
    for_each_part([&](const MemoryPart& part, std::byte* place, size_t bytes) {
      items.push_back({part.input, place, bytes});
    });
    return scratch_.domain(spec_.device).copy(items);
  }

  std::unique_ptr<PendingCopy> unpack() {
    if (!packed()) return nullptr;
    std::vector<CopyItem> items;
    for_each_part([&](const MemoryPart& part, const std::byte* place, size_t bytes) {
      items.push_back({place, part.output, bytes});
    });
    return scratch_.domain(spec_.device).copy(items);
  }

  void start() {
    BatchFacts facts;
    facts.kind = batch_.kind;
    facts.dtype = batch_.dtype;
    facts.reduce_op = batch_.reduce_op;
    facts.device = batch_.device;
    facts.count = batch_.count;
    if (batch_.kind == CollectiveKind::Allgather) {
      facts.count = 0;
      for (const int64_t count : batch_.counts) facts.count += count;
    }
    CollectiveOp& op = parts_.ops->select(facts);
    op_name_ = op.name();
    flight_ = op.start(std::move(batch_));
    stage_ = Stage::Flying;
    started_ = Timeline::Clock::now();
  }

  void note() const {
    if (parts_.timeline == nullptr) return;
    const auto now = Timeline::Clock::now();
    const std::string& first = work_.entries.front().name;
    const std::string name =
        work_.entries.size() == 1 ? first : concat(first, " +", work_.entries.size() - 1, " more");
    int64_t elements = 0;
    for (const EntryWork& entry : work_.entries) elements += element_count(*entry.spec);
    const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(spec_.dtype);
    parts_.timeline->span("prepare", name, began_, started_);
    parts_.timeline->span("collective", name, started_, now,
                          concat(op_name_, ", ", bytes_text(bytes)));
  }

  BatchWork work_;
  Parts& parts_;
  Scratch& scratch_;
  const std::shared_ptr<const EntrySpec> spec_owner_;  // outlives finish()
  const EntrySpec& spec_;
  Stage stage_ = Stage::Waiting;
  Batch batch_;
  Scratch::Buffer scratch_buffer_;
  std::vector<std::byte> neutral_;
  std::unique_ptr<PendingCopy> copy_;
  std::unique_ptr<InFlight> flight_;
  std::string_view op_name_;
  Timeline::Clock::time_point began_;
  Timeline::Clock::time_point started_;
};

Executor::Executor(Parts parts)
    : parts_(std::move(parts)), scratch_(std::make_unique<Scratch>(parts_)) {}

Executor::~Executor() = default;

void Executor::enqueue(BatchWork work) {
  HORON_CHECK(!work.entries.empty(), "a batch without entries");
  running_.push_back(std::make_unique<Running>(std::move(work), parts_, *scratch_));
}

Executor::Pace Executor::step(std::vector<FinishedBatch>& finished) {
  Pace pace = Pace::Idle;
  const auto slower = [&](Pace seen) {
    // Busy wins over Polling, Polling over Ringing: the most restless batch sets the pace.
    if (pace == Pace::Idle || seen < pace) pace = seen;
  };
  bool may_start = true;
  for (auto place = running_.begin(); place != running_.end();) {
    Running& running = **place;
    Progress progress = Progress::Done;
    std::optional<Error> error;
    try {
      progress = running.step(may_start);
    } catch (const Error& thrown) {
      error = thrown;
      running.leak();
    }
    may_start = may_start && (running.started() || error.has_value());
    if (progress != Progress::Done) {
      slower(progress == Progress::Advanced  ? Pace::Busy
             : progress == Progress::Polling ? Pace::Polling
                                             : Pace::Ringing);
      ++place;
      continue;
    }
    finished.push_back(running.finish(std::move(error)));
    place = running_.erase(place);
    slower(Pace::Busy);
  }
  return pace;
}

std::vector<FinishedBatch> Executor::abandon(const Error& error) {
  std::vector<FinishedBatch> given_up;
  for (auto& running : running_) {
    running->leak();
    given_up.push_back(running->finish(error));
  }
  running_.clear();
  return given_up;
}

}  // namespace horon::core

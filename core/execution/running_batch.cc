#include "horon/core/execution/running_batch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/neutral.h"

namespace horon::core {
namespace {

// Calls visit(part, first element, elements) in the order in which packed blocks lie.
template <class Visit>
void for_each_block(const std::vector<std::vector<int64_t>>& blocks, const Visit& visit) {
  std::vector<int64_t> begins(blocks.size());
  for (size_t block = 0; block < blocks.front().size(); ++block) {
    for (size_t part = 0; part < blocks.size(); ++part) {
      visit(part, begins[part], blocks[part][block]);
      begins[part] += blocks[part][block];
    }
  }
}

}  // namespace

RunningBatch::RunningBatch(BatchWork work, BatchContext& context)
    : work_(std::move(work)),
      context_(context),
      spec_owner_(work_.entries.at(0).spec),
      spec_(*spec_owner_) {
  if (context_.timeline != nullptr) began_ = Timeline::Clock::now();
}

RunningBatch::~RunningBatch() {
  if (scratch_buffer_.memory) {
    context_.scratch.give_back(spec_.device, std::move(scratch_buffer_));
  }
}

Progress RunningBatch::step(bool may_start) {
  for (;;) {
    switch (stage_) {
      case Stage::Waiting:
        if (!tensors_ready()) return Progress::Polling;
        lay_out();
        copy_ = pack();
        stage_ = Stage::Packing;
        break;
      case Stage::Packing:
        if (const Progress progress = copy_.step(); progress != Progress::Done) return progress;
        stage_ = Stage::Packed;
        break;
      case Stage::Packed:
        if (!may_start) return Progress::Ringing;  // moves when the batch before it does
        start();
        break;
      case Stage::Flying:
        if (const Progress progress = flight_->step(); progress != Progress::Done) return progress;
        flight_.reset();
        copy_ = unpack();
        stage_ = Stage::Unpacking;
        break;
      case Stage::Unpacking:
        if (const Progress progress = copy_.step(); progress != Progress::Done) return progress;
        stage_ = Stage::Finished;
        note();
        return Progress::Done;
      case Stage::Finished:
        return Progress::Done;
    }
  }
}

FinishedBatch RunningBatch::finish(std::optional<Error> error) {
  return {work_.sequence, std::move(work_.entries), std::move(error)};
}

void RunningBatch::leak() {
  keep_for_ever(std::shared_ptr<InFlight>(std::move(flight_)));
  copy_.keep_pending();
  keep_for_ever(std::exchange(scratch_buffer_.memory, nullptr));
}

bool RunningBatch::tensors_ready() {
  return std::all_of(work_.entries.begin(), work_.entries.end(), [](EntryWork& entry) {
    return entry.ready == nullptr || entry.ready->ready();
  });
}

size_t RunningBatch::bytes_of(int64_t elements) const {
  return static_cast<size_t>(elements) * size_of(batch_.dtype);
}

// One stretch of memory of this rank, as it is: nothing is packed.
bool RunningBatch::works_in_place_of_one_tensor() const {
  const EntryWork& first = work_.entries.front();
  return work_.entries.size() == 1 && first.mine && first.memory.size() == 1 && !compressed() &&
         !moves_blocks(spec_.kind) && spec_.kind != CollectiveKind::Barrier;
}

// Decides where the op works: directly on the one stretch of memory that there is, or in a fusion
// buffer.
void RunningBatch::lay_out() {
  const bool direct = works_in_place_of_one_tensor();
  const PreparedBatch* const prepared =
      direct ? context_.prepared.find(&spec_, work_.contributors) : nullptr;
  if (prepared != nullptr) {
    batch_ = prepared->batch;
    op_ = prepared->op;
  } else {
    describe();
  }
  batch_.sequence = work_.sequence;
  if (spec_.kind == CollectiveKind::Barrier) return;
  if (moves_blocks(spec_.kind)) return lay_out_blocks();
  if (prepared == nullptr) {
    for (const EntryWork& entry : work_.entries) batch_.count += element_count(*entry.spec);
    facts_count_ = batch_.count;
  }
  if (direct) {
    if (prepared == nullptr) {
      op_ = &op_for(*context_.ops, batch_, facts_count_);
      context_.prepared.add({spec_owner_, work_.contributors, batch_, op_});
    }
    batch_.input = work_.entries.front().memory[0].input;
    batch_.output = work_.entries.front().memory[0].output;
    return;
  }
  scratch_buffer_ = context_.scratch.take(spec_.device, bytes_of(batch_.count));
  batch_.input = scratch_buffer_.memory.get();
  batch_.output = scratch_buffer_.memory.get();
}

// All of the batch that follows from the spec and from who takes part.
void RunningBatch::describe() {
  batch_.kind = spec_.kind;
  batch_.dtype = spec_.dtype;
  batch_.reduce_op = spec_.reduce_op;
  batch_.device = spec_.device;
  batch_.root = index_of(spec_.root, context_.ranks);
  if (!compressed()) {
    batch_.prescale = spec_.prescale;
    batch_.postscale = spec_.postscale;
  } else {  // scales are applied where float32 is at hand
    const bool half = spec_.compression == Compression::Float16;
    batch_.dtype = half ? DataType::Float16 : DataType::BFloat16;
  }
  if (spec_.reduce_op == ReduceOp::Average) batch_.divisor = work_.contributors;
  if (work_.contributors < static_cast<int>(context_.ranks.size())) move_prescale_to_result();
}

// Once a rank has joined, its neutral elements must not be scaled: only zero stays neutral under a
// scale. So the scale of the inputs is applied to the result instead: p * min(x) = min(p * x), and
// for p < 0 the largest x gives the smallest p * x.
void RunningBatch::move_prescale_to_result() {
  const double prescale = std::exchange(batch_.prescale, 1.0);
  switch (batch_.reduce_op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      batch_.prescale = prescale;
      return;
    case ReduceOp::Product:
      batch_.postscale *= std::pow(prescale, work_.contributors);
      return;
    case ReduceOp::Min:
    case ReduceOp::Max:
      batch_.postscale *= prescale;
      if (prescale >= 0) return;
      batch_.reduce_op = batch_.reduce_op == ReduceOp::Min ? ReduceOp::Max : ReduceOp::Min;
      return;
  }
}

// Batches of this kind have one entry. A tensor alone is sent and received where it lies; a group
// is packed.
void RunningBatch::lay_out_blocks() {
  EntryWork& entry = work_.entries.front();
  blocks_ = make_block_layout(spec_, entry.extents, context_.me, context_.ranks);
  const std::vector<int64_t> in = blocks_.in_counts();
  const std::vector<int64_t> out = blocks_.out_counts();
  const int64_t in_total = total(in);
  const int64_t out_total = total(out);
  const bool reduces_blocks = spec_.kind == CollectiveKind::Reducescatter;
  batch_.count = reduces_blocks ? out_total : in_total;
  if (spec_.kind != CollectiveKind::Allgather) batch_.send_counts = in;
  if (!reduces_blocks) batch_.receive_counts = out;
  facts_count_ = count_of_all();
  for (const std::vector<int64_t>& part : blocks_.out) {
    entry.received.insert(entry.received.end(), part.begin(), part.end());
  }
  if (entry.mine && spec_.parts.size() == 1) {
    batch_.input = entry.memory.front().input;
    batch_.output = out_total > 0 ? allocate_output(entry, 0, out_total) : nullptr;
    if (!entry.error) return;
    // The others count on this rank: it takes part, and its result is thrown away.
    scratch_buffer_ = context_.scratch.take(spec_.device, bytes_of(out_total));
    batch_.output = scratch_buffer_.memory.get();
    return;
  }
  const size_t out_place = (bytes_of(in_total) + 63) / 64 * 64;
  scratch_buffer_ = context_.scratch.take(spec_.device, out_place + bytes_of(out_total));
  batch_.input = scratch_buffer_.memory.get();
  batch_.output = scratch_buffer_.memory.get() + out_place;
  packed_ = entry.mine;
  for (size_t part = 0; part < blocks_.out.size() && entry.mine; ++part) {
    const int64_t elements = total(blocks_.out[part]);
    if (elements > 0) entry.memory[part].output = allocate_output(entry, part, elements);
  }
}

// Null, with the entry's error, if there is no memory for this rank's result.
std::byte* RunningBatch::allocate_output(EntryWork& entry, size_t part, int64_t elements) const {
  std::string why = "its allocator gave none";
  ErrorCode code = ErrorCode::Limit;
  try {
    std::byte* const output = entry.allocate_output(part, elements);
    if (output != nullptr) return output;
  } catch (...) {
    const Error error = current_error();
    code = error.code();
    why = error.what();
  }
  const int rank = context_.ranks[static_cast<size_t>(context_.me)];
  entry.error = Error(
      code, concat("tensor \"", entry.name, "\": rank ", rank, " has no memory for its result of ",
                   bytes_text(bytes_of(elements)), ": ", why));
  return nullptr;
}

// The same on every rank.
int64_t RunningBatch::count_of_all() const {
  if (spec_.kind == CollectiveKind::Reducescatter) return element_count(spec_);
  // Rows of unlike tensors: a measure, not a sum of bytes.
  const std::vector<int64_t>& extents = work_.entries.front().extents;
  return total(extents) * row_elements(spec_.parts.front().shape);
}

// Calls visit(part, place in the fusion buffer, elements) for all memory of this rank.
template <class Visit>
void RunningBatch::for_each_part(const Visit& visit) {
  std::byte* place = scratch_buffer_.memory.get();
  for (const EntryWork& entry : work_.entries) {
    if (!entry.mine) {
      place += bytes_of(element_count(*entry.spec));
      continue;
    }
    for (const MemoryPart& part : entry.memory) {
      visit(part, place, part.count);
      place += bytes_of(part.count);
    }
  }
}

SlicedCopy RunningBatch::copy_of(std::vector<CopyItem> items) {
  return {context_.scratch.domain(spec_.device), std::move(items)};
}

SlicedCopy RunningBatch::copy_blocks(bool in) {
  std::vector<CopyItem> items;
  const std::vector<MemoryPart>& memory = work_.entries.front().memory;
  const std::byte* from = batch_.output;
  auto* to = const_cast<std::byte*>(batch_.input);
  for_each_block(in ? blocks_.in : blocks_.out, [&](size_t part, int64_t begin, int64_t count) {
    const size_t bytes = bytes_of(count);
    if (in) {
      items.push_back({memory[part].input + bytes_of(begin), to, bytes});
      to += bytes;
    } else if (count > 0) {
      items.push_back({from, memory[part].output + bytes_of(begin), bytes});
      from += bytes;
    }
  });
  return copy_of(std::move(items));
}

// Copied in pieces: a vector as large as the batch would cost its page faults in one step.
void RunningBatch::add_neutral(std::vector<CopyItem>& items) {
  constexpr size_t piece_max = size_t{64} << 10;
  const size_t bytes = bytes_of(batch_.count);
  neutral_.resize(std::min(bytes, piece_max));
  fill_neutral(neutral_, batch_.dtype, batch_.reduce_op);
  for (size_t at = 0; at < bytes; at += piece_max) {
    items.push_back({neutral_.data(), scratch_buffer_.memory.get() + at,
                     std::min(neutral_.size(), bytes - at)});
  }
}

SlicedCopy RunningBatch::pack() {
  if (scratch_buffer_.memory == nullptr) return {};
  if (moves_blocks(spec_.kind)) return packed_ ? copy_blocks(true) : SlicedCopy();
  std::vector<CopyItem> items;
  // Joined: the same for every entry of the batch.
  if (!work_.entries.front().mine) add_neutral(items);
  for_each_part([&](const MemoryPart& part, std::byte* place, int64_t elements) {
    CopyItem& item = items.emplace_back();
    item.from = part.input;
    item.to = place;
    item.bytes = static_cast<size_t>(elements) * size_of(spec_.dtype);
    if (!compressed()) return;
    item.cast = CopyItem::Cast::Narrow;
    item.type = spec_.compression;
    item.factor = spec_.prescale;
  });
  return copy_of(std::move(items));
}

SlicedCopy RunningBatch::unpack() {
  if (scratch_buffer_.memory == nullptr) return {};
  if (moves_blocks(spec_.kind)) {
    return packed_ && !work_.entries.front().error ? copy_blocks(false) : SlicedCopy();
  }
  std::vector<CopyItem> items;
  for_each_part([&](const MemoryPart& part, const std::byte* place, int64_t elements) {
    CopyItem& item = items.emplace_back();
    item.from = place;
    item.to = part.output;
    item.bytes = bytes_of(elements);
    if (!compressed()) return;
    item.cast = CopyItem::Cast::Widen;
    item.type = spec_.compression;
    item.factor = spec_.postscale;
  });
  return copy_of(std::move(items));
}

void RunningBatch::start() {
  if (op_ == nullptr) op_ = &op_for(*context_.ops, batch_, facts_count_);
  if (context_.timeline != nullptr) started_ = Timeline::Clock::now();
  flight_ = op_->start(batch_);
  stage_ = Stage::Flying;
}

void RunningBatch::note() const {
  if (context_.timeline == nullptr) return;
  const auto now = Timeline::Clock::now();
  const std::string& first = work_.entries.front().name;
  const std::string name =
      work_.entries.size() == 1 ? first : concat(first, " +", work_.entries.size() - 1, " more");
  int64_t elements = 0;
  for (const EntryWork& entry : work_.entries) elements += element_count(*entry.spec);
  const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(spec_.dtype);
  context_.timeline->span("prepare", name, began_, started_);
  context_.timeline->span("collective", name, started_, now,
                          concat(op_->name(), ", ", bytes_text(bytes)));
}

}  // namespace horon::core

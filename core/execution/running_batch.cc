#include "horon/core/execution/running_batch.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "horon/core/base/current_error.h"
#include "horon/core/base/keep_for_ever.h"
#include "horon/core/base/round_up.h"
#include "horon/core/base/text.h"
#include "horon/core/execution/batch_description.h"
#include "horon/core/negotiation/told_extents.h"

namespace horon::core {

RunningBatch::RunningBatch(BatchWork work, BatchContext& context)
    : work_(std::move(work)),
      context_(context),
      spec_owner_(work_.entries.at(0).spec),
      spec_(*spec_owner_) {
  if (records(context_.timeline)) began_ = Timeline::Clock::now();
  if (LiveRanges* const profiler = profiler_of(context_.timeline))
    range_ = {profiler, to_string(spec_.kind), title()};
}

RunningBatch::~RunningBatch() {
  // The executor ends with the batch under way.
  if (scratch_.memory != nullptr || host_copies_ != nullptr) leak();
}

Progress RunningBatch::step(const Predecessors& earlier) {
  while (stage_ != Stage::Finished) {
    if (const Progress progress = pass(earlier); progress != Progress::Done) return progress;
    stage_ = next_stage();
  }
  return Progress::Done;
}

RunningBatch::Stage RunningBatch::next_stage() const {
  if (stage_ == Stage::Waiting && planned_chunks_ != nullptr) return Stage::InChunks;
  if (stage_ == Stage::Unpacking) return Stage::Enqueued;
  return static_cast<Stage>(static_cast<uint8_t>(stage_) + 1);
}

// Done: the stage is over.
Progress RunningBatch::pass(const Predecessors& earlier) {
  switch (stage_) {
    case Stage::New:
      if (op_ == nullptr) choose_op();  // it decides which later batches may start
      if (spec_.kind != CollectiveKind::Barrier && !domain_->is_open()) return Progress::Polling;
      if (host_copies_ != nullptr) {
        if (!may_make_host_copies(earlier)) return Progress::Ringing;
        if (!host_copies_->place()) return Progress::Polling;
      }
      place();
      hopes_for_ops_scratch_ = !spec_.captured && is_packed_on_all_ranks() && scratch_bytes_ &&
                               *scratch_bytes_ <= op_->shared_scratch_max();
      return Progress::Done;
    case Stage::WantsScratch:  // an earlier batch gives some back
      return take_scratch(earlier);
    case Stage::Waiting:
      // Nothing of this batch may enter the queue before the work that an earlier op enqueues.
      if (op_->enqueues() && !earlier.may_start(*op_)) return Progress::Ringing;
      if (!tensors_ready() || !tensors_here()) return Progress::Polling;
      if (planned_chunks_ == nullptr) copy_ = pack();
      return Progress::Done;
    case Stage::Packing:
      if (const Progress progress = copy_.step(); progress != Progress::Done) return progress;
      end_packing();
      return Progress::Done;
    case Stage::Packed:
      if (!host_may_touch_memory()) return Progress::Polling;
      if (!earlier.may_start(*op_)) return Progress::Ringing;  // until the earlier batch moves
      start();
      return Progress::Done;
    case Stage::Flying:
      if (const Progress progress = flight_->step(); progress != Progress::Done) return progress;
      if (immediate_ || !op_->enqueues()) flight_.reset();
      copy_ = unpack();
      return Progress::Done;
    case Stage::Unpacking:
      if (const Progress progress = copy_.step(); progress != Progress::Done) return progress;
      end_unpacking();
      return Progress::Done;
    case Stage::InChunks:
      return step_chunks(earlier.may_start(*op_));
    case Stage::Enqueued:
      if (flight_ != nullptr) flight_->watch();
      if (done_ != nullptr && !done_->happened()) return Progress::Polling;
      // The stream of the program must wait for it, or its capture does not end.
      if (spec_.captured && has_news()) return Progress::Polling;
      end_copies();
      range_.end();
      note();
      return Progress::Done;
    case Stage::Finished:
      break;
  }
  return Progress::Done;
}

EnqueuedBatch RunningBatch::tell() {
  EnqueuedBatch enqueued{done_, {}};
  for (EntryWork& entry : work_.entries) {
    if (!entry.mine) continue;
    enqueued.entries.push_back({entry.ticket, std::move(entry.received), entry.error});
  }
  told_ = true;
  return enqueued;
}

FinishedBatch RunningBatch::finish(std::optional<Error> error) noexcept {
  return {work_.sequence, told_, std::move(work_.entries), std::move(error)};
}

void RunningBatch::leak() noexcept {
  if (flight_ != nullptr) keep_value_for_ever(flight_);
  if (chunks_ != nullptr) keep_value_for_ever(chunks_);
  if (host_copies_ != nullptr) host_copies_->end(/*in_use=*/true);
  const bool of_op = ops_scratch_ != nullptr;  // which goes on counting this as a user
  if (scratch_.memory != nullptr && !of_op) context_.scratch->leak(std::move(scratch_));
  scratch_ = {};
}

size_t RunningBatch::bytes_of(int64_t elements) const {
  return static_cast<size_t>(elements) * size_of(batch_.dtype);
}

// One stretch of memory of this rank, as it is: nothing is packed.
bool RunningBatch::works_in_place_of_one_tensor() const {
  const EntryWork& first = work_.entries.front();
  return direct_ && work_.entries.size() == 1 && first.mine && first.memory.size() == 1 &&
         (!in_16_bits() || first.narrowed) && !moves_blocks(spec_.kind) &&
         spec_.kind != CollectiveKind::Barrier;
}

// Which op, on how many elements.
void RunningBatch::choose_op() {
  // Entries that run together now need not do so the next time.
  const bool alone = work_.entries.size() == 1;
  std::vector<int64_t>& extents = work_.entries.front().extents;
  const PreparedBatch* const prepared =
      alone ? context_.prepared.find(&spec_, work_.contributors, extents) : nullptr;
  if (prepared != nullptr) {
    batch_ = prepared->batch;
    op_ = prepared->op;
    blocks_ = prepared->blocks;
  } else {
    describe();
    if (alone) {
      context_.prepared.add(
          {spec_owner_, work_.contributors, std::move(extents), batch_, op_, blocks_});
    }
  }
  domain_ = &choose_domain();
  queue_ = &domain_->queue();
  batch_.queue = queue_;
  immediate_ = queue_->immediate();
  direct_ = immediate_ || domain_->ops_reach_tensors();
  batch_.sequence = work_.sequence;
  if (HostCopies::are_needed(work_.entries)) make_host_copies();
}

MemoryDomain& RunningBatch::choose_domain() const {
  if (!spec_.captured) {
    return op_->works_in_host_copies() ? context_.scratch->domain_of_host_copies(spec_.device)
                                       : context_.scratch->domain(spec_.device);
  }
  HORON_CHECK(work_.contributors == static_cast<int>(context_.ranks.size()),
              "the coordinator refuses captures once a rank has joined");
  return context_.scratch->domain_of_captures(spec_.device);
}

// Directly on the one stretch of memory that there is, or in a fusion buffer.
void RunningBatch::place() {
  if (moves_blocks(spec_.kind)) {
    place_blocks();
  } else if (works_in_place_of_one_tensor()) {
    const MemoryPart& memory = work_.entries.front().memory[0];
    batch_.input = memory.input;
    batch_.output = in_16_bits() ? const_cast<std::byte*>(memory.input) : memory.output;
    batch_.wants_output = in_16_bits() || memory.wants_output;
  } else if (spec_.kind != CollectiveKind::Barrier) {
    scratch_bytes_ = bytes_of(batch_.count);
    input_at_ = output_at_ = 0;
  }
  cut_in_chunks();
}

// What does not depend on memory.
void RunningBatch::describe() {
  batch_ = describe_batch(spec_, work_.contributors, context_.ranks);
  if (moves_blocks(spec_.kind)) {
    blocks_ = std::make_shared<const BlockLayout>(
        make_block_layout(spec_, work_.entries.front().extents, context_.me, context_.ranks));
    const bool reduces_blocks = spec_.kind == CollectiveKind::Reducescatter;
    batch_.count = reduces_blocks ? blocks_->out_total : blocks_->in_total;
    if (spec_.kind != CollectiveKind::Allgather) batch_.send_counts = blocks_->in_counts;
    if (!reduces_blocks) batch_.receive_counts = blocks_->out_counts;
    op_ = &op_for(*context_.ops, batch_, count_of_all());
    return;
  }
  if (spec_.kind != CollectiveKind::Barrier) add_up_entries();
  op_ = &op_for(*context_.ops, batch_, batch_.count);
}

void RunningBatch::add_up_entries() {
  int64_t shortest = std::numeric_limits<int64_t>::max();
  for (const EntryWork& entry : work_.entries) {
    const int64_t count = element_count(*entry.spec);
    batch_.count += count;
    if (count > 0) shortest = std::min(shortest, count);
  }
  if (work_.entries.size() > 1 && batch_.count > 0) batch_.shortest_entry = shortest;
  if (spec_.reduce_op != ReduceOp::Adasum) return;
  std::vector<int64_t> tensors;
  for (const EntryWork& entry : work_.entries) {
    for (const TensorPart& part : entry.spec->parts) tensors.push_back(element_count(part.shape));
  }
  batch_.tensor_counts = BlockCounts(std::move(tensors));
}

// Batches of this kind have one entry. A tensor alone is sent and received where it lies, if the op
// reaches it; a group is packed.
void RunningBatch::place_blocks() {
  EntryWork& entry = work_.entries.front();
  const BlockLayout& blocks = *blocks_;
  entry.received.reserve(blocks.out.size() * blocks.out.front().size());
  for (const std::vector<int64_t>& part : blocks.out) {
    entry.received.insert(entry.received.end(), part.begin(), part.end());
  }
  if (direct_ && entry.mine && blocks.in.size() == 1) {
    batch_.input = entry.memory.front().input;
    if (place_apart(entry)) return;
    batch_.output = blocks.out_total > 0 ? allocate_output(entry, 0, blocks.out_total) : nullptr;
    if (!entry.error) return;
    // There is no memory for this rank's result, but the other ranks need this rank in the
    // collective. So the result goes to scratch and is thrown away.
    scratch_bytes_ = bytes_of(blocks.out_total);
    output_at_ = 0;
    return;
  }
  input_at_ = 0;
  output_at_ = whole_cache_lines(bytes_of(blocks.in_total));
  scratch_bytes_ = *output_at_ + bytes_of(blocks.out_total);
  packs_blocks_ = entry.mine;
  for (size_t part = 0; part < blocks.out.size() && entry.mine; ++part) {
    const int64_t elements = total(blocks.out[part]);
    if (elements > 0) entry.memory[part].output = allocate_output(entry, part, elements);
  }
}

// False: the result goes to one stretch of memory, because the op can't write elsewhere, or because
// some member sends another number of elements than the caller expects; the caller finds out then.
bool RunningBatch::place_apart(const EntryWork& entry) {
  if (entry.output_blocks.empty() || !op_->writes_blocks_apart()) return false;
  const bool fits = std::equal(
      entry.output_blocks.begin(), entry.output_blocks.end(), blocks_->out_counts.begin(),
      blocks_->out_counts.end(),
      [](const OutputBlock& block, int64_t received) { return block.count == received; });
  if (!fits) return false;
  for (const OutputBlock& block : entry.output_blocks) batch_.output_blocks.push_back(block.data);
  return true;
}

// Null, with the entry's error, if there is no memory for this rank's result.
std::byte* RunningBatch::allocate_output(EntryWork& entry, size_t part, int64_t elements) const {
  std::string why;  // set only if the memory is refused
  ErrorCode code = ErrorCode::Limit;
  try {
    std::byte* const output = entry.allocate_output(part, elements, *queue_);
    if (output != nullptr) return output;
    why = "its allocator gave none";
  } catch (...) {
    const Error error = current_error();
    code = error.code();
    why = error.what();
  }
  const int rank = context_.ranks[static_cast<size_t>(context_.me)];
  // InvalidArgument: the call has given memory that does not fit, so memory is not lacking.
  const std::string lacks =
      code == ErrorCode::InvalidArgument
          ? ""
          : concat(" has no memory for its result of ", bytes_text(bytes_of(elements)));
  entry.error = Error(code, concat("tensor \"", entry.name, "\": rank ", rank, lacks, ": ", why));
  return nullptr;
}

bool RunningBatch::is_source() const {
  return spec_.kind == CollectiveKind::Broadcast && batch_.root == context_.me;
}

// The same on every rank.
int64_t RunningBatch::count_of_all() const {
  if (spec_.kind == CollectiveKind::Reducescatter) return element_count(spec_);
  // The tensors of a group differ in the size of a row. The first one's size serves for all: the
  // choice of an op needs an estimate only.
  const std::vector<int64_t>& extents = work_.entries.front().extents;
  int64_t rows = 0;
  if (spec_.kind == CollectiveKind::Alltoall) {
    for (size_t part = 0; part < spec_.parts.size(); ++part) {
      rows += ToldOfPart(extents, part, context_.ranks.size()).of_all;
    }
  } else {
    rows = total(extents);
  }
  return rows * row_elements(spec_.parts.front().shape);
}

// Uses only facts of the log, not this rank's memory or whether it has joined.
bool RunningBatch::is_packed_on_all_ranks() const {
  const bool narrows = in_16_bits() && !immediate_;
  return spec_.kind == CollectiveKind::Allreduce && (work_.entries.size() > 1 || narrows);
}

// Ringing: an earlier batch gives some back.
Progress RunningBatch::take_scratch(const Predecessors& earlier) {
  if (!scratch_bytes_) return Progress::Done;
  if (hopes_for_ops_scratch_ && !take_scratch_of_op(earlier)) return Progress::Ringing;
  if (ops_scratch_ == nullptr) {
    ScratchPool& pool = *context_.scratch;
    if (!earlier.may_take_scratch(*domain_)) return Progress::Ringing;
    if (!earlier.is_oldest_in(*domain_) && !pool.has_room(*domain_, *scratch_bytes_)) {
      return Progress::Ringing;
    }
    if (!pool.has_at_hand(*domain_, *scratch_bytes_)) return Progress::Polling;
    scratch_ = pool.take(*domain_, *scratch_bytes_);
  }
  if (input_at_) batch_.input = scratch_.memory.get() + *input_at_;
  if (output_at_) batch_.output = scratch_.memory.get() + *output_at_;
  return Progress::Done;
}

// False: the op can't say yet. True: it has given some, or has none. Its answer depends on the
// earlier batches, so it is asked when all their work is in the queue.
bool RunningBatch::take_scratch_of_op(const Predecessors& earlier) {
  if (!earlier.may_start(*op_)) return false;
  hopes_for_ops_scratch_ = false;
  ops_scratch_ = op_->shared_scratch(*scratch_bytes_);
  if (ops_scratch_ == nullptr) return true;
  ++ops_scratch_->users;
  scratch_.memory = {std::shared_ptr<std::byte>(), ops_scratch_->memory};
  return true;
}

// The next user of it enqueues its work behind what is in the queue now.
void RunningBatch::give_scratch_back() {
  if (ops_scratch_ == nullptr) {
    context_.scratch->give_back(*domain_, std::move(scratch_), done_);
    return;
  }
  scratch_ = {};
  --ops_scratch_->users;
  ops_scratch_->last_used = done_;
}

// If the op enqueues, the queue waits for the tensors. If the host drives it, or it wants them
// ready, the host asks: a wait in the queue would also hold up what comes behind this batch.
bool RunningBatch::tensors_ready() {
  const bool queue_waits = op_->enqueues() && !op_->wants_ready_tensors();
  for (; ready_ < work_.entries.size(); ++ready_) {
    Event* const ready = work_.entries[ready_].ready.get();
    if (ready == nullptr || (queue_waits && queue_->wait_for(*ready))) continue;
    if (!ready->happened()) return false;
  }
  return true;
}

void RunningBatch::start() {
  if (records(context_.timeline)) started_ = Timeline::Clock::now();
  flight_ = op_->start(batch_);
}

std::string RunningBatch::title() const {
  const std::string& first = work_.entries.front().name;
  if (work_.entries.size() == 1) return first;
  return concat(first, " +", work_.entries.size() - 1, " more");
}

void RunningBatch::note() const {
  // If the timeline was started while the batch was under way, its times are missing.
  const Timeline::Clock::time_point never;
  if (!records(context_.timeline) || began_ == never || started_ == never) return;
  const auto now = Timeline::Clock::now();
  const std::string name = title();
  int64_t elements = 0;
  for (const EntryWork& entry : work_.entries) elements += element_count(*entry.spec);
  const uint64_t bytes = static_cast<uint64_t>(elements) * size_of(spec_.dtype);
  context_.timeline->span("prepare", name, began_, started_);
  context_.timeline->span("collective", name, started_, now,
                          concat(op_->name(), ", ", bytes_text(bytes)));
}

}  // namespace horon::core

#include "horon/ops/hierarchical/chunk_exchange.h"

#include <algorithm>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/round_up.h"

namespace horon::ops {
namespace {

size_t wire_bytes_of(const ExchangePlan& plan, int64_t elements) {
  return core::whole_cache_lines(static_cast<size_t>(plan.wire_type.bytes(elements)));
}

int64_t longest_part(const HostsLayout& layout, const ExchangePlan& plan) {
  if (plan.one_round) return plan.chunk_elements;
  return plan.part({0, plan.chunk_elements}, 0, layout.hosts).count;
}

}  // namespace

size_t ChunkExchange::memory_bytes(const HostsLayout& layout, const ExchangePlan& plan) {
  return wire_bytes_of(plan, plan.chunk_elements) +
         static_cast<size_t>(layout.hosts) * wire_bytes_of(plan, longest_part(layout, plan));
}

ExchangeContext::ExchangeContext(Messages& between, const HostsLayout& hosts,
                                 const core::Batch& batch, const ExchangePlan& plan_of_batch,
                                 int tag)
    : messages(between),
      layout(hosts),
      plan(plan_of_batch),
      sums(batch, plan.raw, plan.wire_type),
      dtype(batch.dtype),
      first_tag(tag) {}

ChunkExchange::ChunkExchange(const ExchangeContext& context, std::byte* memory)
    : context_(context),
      sum_memory_(memory),
      received_memory_(memory + wire_bytes_of(context.plan, context.plan.chunk_elements)) {
  const HostsLayout& layout = context_.layout;
  for (int distance = 1; distance < layout.hosts; ++distance) {
    Traffic& with = traffic_.emplace_back();
    with.host = (layout.host + distance) % layout.hosts;
    with.peer = layout.peers[static_cast<size_t>(with.host)];
  }
  sums_of_hosts_.resize(static_cast<size_t>(layout.hosts));
}

int64_t ChunkExchange::begin(int64_t index, std::span<const std::byte* const> inputs,
                             std::span<std::byte* const> outputs) {
  index_ = index;
  chunk_ = context_.plan.chunk(index);
  inputs_.assign(inputs.begin(), inputs.end());
  outputs_.assign(outputs.begin(), outputs.end());
  part_outputs_.resize(outputs_.size());
  for (Traffic& with : traffic_) with.wants_result = !context_.plan.one_round;
  // Posted before this host's sum is made: the others may have sent theirs.
  for (Traffic& with : traffic_) {
    const ExchangePlan::Stretch part = part_of(context_.layout.host);
    if (part.count == 0) continue;
    with.sum_in =
        context_.messages.receive(with.peer, tag(0), received(with.host), wire_bytes(part.count));
  }
  const bool is_input = context_.sums.is_input(static_cast<int>(inputs_.size()));
  if (!is_input) context_.sums.add_ranks(inputs_, sum_memory_, chunk_.count);
  sum_ = is_input ? inputs_.front() : sum_memory_;
  send_sums();
  stage_ = Stage::Gathering;
  const int64_t others = std::ssize(traffic_);
  const int64_t sent = wire_bytes(chunk_.count) * (context_.plan.one_round ? others : 1);
  return 2 * others * Messages::kPostCost + sent +
         std::max(wire_bytes(chunk_.count), bytes(chunk_.count)) * std::ssize(inputs_);
}

// Two peers exchange the chunks of one lane, so tags count within it.
int ChunkExchange::tag(int round) const {
  const int64_t of_lane = index_ / context_.layout.lanes;
  return context_.first_tag + static_cast<int>((of_lane * 2 + round) % kTagsOfBatch);
}

// The part of the chunk that a host adds.
ExchangePlan::Stretch ChunkExchange::part_of(int host) const {
  if (context_.plan.one_round) return {0, chunk_.count};
  return context_.plan.part(chunk_, host, context_.layout.hosts);
}

std::byte* ChunkExchange::received(int host) const {
  return received_memory_ +
         static_cast<size_t>(host) *
             wire_bytes_of(context_.plan, longest_part(context_.layout, context_.plan));
}

const std::byte* ChunkExchange::own_sum(const ExchangePlan::Stretch& part) const {
  return sum_ + wire_bytes(part.begin);
}

void ChunkExchange::send_sums() {
  for (Traffic& with : traffic_) {
    const ExchangePlan::Stretch part = part_of(with.host);
    if (part.count == 0) continue;
    with.sum_out = context_.messages.send(with.peer, tag(0), own_sum(part), wire_bytes(part.count));
  }
}

// Whether the message has just ended.
bool ChunkExchange::take(UnderWay& message) {
  if (!message || !context_.messages.take_if_over(*message)) return false;
  message.reset();
  return true;
}

bool ChunkExchange::any(UnderWay Traffic::*message) const {
  return std::any_of(traffic_.begin(), traffic_.end(),
                     [&](const Traffic& with) { return (with.*message).has_value(); });
}

int64_t ChunkExchange::advance() {
  if (over()) return 0;
  bool moved = false;
  for (Traffic& with : traffic_) {
    for (UnderWay Traffic::*const message :
         {&Traffic::sum_out, &Traffic::sum_in, &Traffic::result_out}) {
      moved = take(with.*message) || moved;
    }
  }
  int64_t touched = fetch_results();
  if (stage_ == Stage::Gathering) touched += gather();
  if (stage_ == Stage::Returning && !any(&Traffic::sum_out) && !any(&Traffic::result_out) &&
      std::none_of(traffic_.begin(), traffic_.end(),
                   [](const Traffic& with) { return with.wants_result; })) {
    stage_ = Stage::Over;
    moved = true;
  }
  return std::max(touched, int64_t{moved ? 1 : 0});
}

// Adds the part of this host, once the sums of all hosts for it are here. In one round and in place
// the result overwrites the input that is being sent, so that must have left first.
int64_t ChunkExchange::gather() {
  const bool sends_input = sum_ != sum_memory_ && context_.plan.one_round;
  if (any(&Traffic::sum_in) || (sends_input && any(&Traffic::sum_out))) return 0;
  const ExchangePlan::Stretch part = part_of(context_.layout.host);
  stage_ = Stage::Returning;
  if (part.count == 0) return 1;
  add_part(part);
  const int64_t touched =
      wire_bytes(part.count) * context_.layout.hosts + bytes(part.count) * std::ssize(outputs_);
  if (context_.plan.one_round) return touched;
  return_part(part);
  return touched + std::ssize(traffic_) * (Messages::kPostCost + result_bytes(part.count));
}

void ChunkExchange::add_part(const ExchangePlan::Stretch& part) {
  for (const Traffic& with : traffic_) {
    sums_of_hosts_[static_cast<size_t>(with.host)] = received(with.host);
  }
  sums_of_hosts_[static_cast<size_t>(context_.layout.host)] = own_sum(part);
  if (narrowed() && !context_.plan.one_round) {
    context_.sums.add_hosts_for_wire(sums_of_hosts_, result_place(part), part.count);
    return spread_result(part);
  }
  for (size_t rank = 0; rank < outputs_.size(); ++rank) {
    part_outputs_[rank] = outputs_[rank] + bytes(part.begin);
  }
  context_.sums.add_hosts(sums_of_hosts_, part_outputs_, part.count);
}

// Where a result that travels lies on this host: in the output of the rank that drives the chunk.
// Narrowed: in place of the sum, which is not needed any more.
std::byte* ChunkExchange::result_place(const ExchangePlan::Stretch& part) const {
  if (narrowed()) return sum_memory_ + wire_bytes(part.begin);
  return outputs_[static_cast<size_t>(context_.layout.local_rank)] + bytes(part.begin);
}

// Copies the result from result_place() to the outputs of all ranks of this host.
void ChunkExchange::spread_result(const ExchangePlan::Stretch& part) {
  const std::byte* const result = result_place(part);
  for (size_t rank = 0; rank < outputs_.size(); ++rank) {
    part_outputs_[rank] = outputs_[rank] + bytes(part.begin);
  }
  if (narrowed()) return context_.sums.widen_result(result, part_outputs_, part.count);
  for (std::byte* const place : part_outputs_) {
    if (place != result) core::copy_bytes(place, result, static_cast<size_t>(bytes(part.count)));
  }
}

void ChunkExchange::return_part(const ExchangePlan::Stretch& part) {
  const std::byte* const result = result_place(part);
  for (Traffic& with : traffic_) {
    with.result_out = context_.messages.send(with.peer, tag(1), result, result_bytes(part.count));
  }
}

// Receives the results of the other hosts' parts. The sum that this host sends for a part may lie
// in the same memory, so it must have left first.
int64_t ChunkExchange::fetch_results() {
  int64_t touched = 0;
  for (Traffic& with : traffic_) {
    if (!with.wants_result || with.sum_out) continue;
    const ExchangePlan::Stretch part = part_of(with.host);
    if (part.count > 0 && !with.result_in) {
      with.result_in = context_.messages.receive(with.peer, tag(1), result_place(part),
                                                 result_bytes(part.count));
      touched += Messages::kPostCost;
      continue;
    }
    if (part.count > 0 && !take(with.result_in)) continue;
    spread_result(part);
    with.wants_result = false;
    touched += 1 + bytes(part.count) * std::ssize(outputs_);
  }
  return touched;
}

}  // namespace horon::ops

#include "horon/ops/hierarchical/hierarchical_allreduce.h"

#include <limits>
#include <utility>

#include "horon/core/execution/finished_flight.h"
#include "horon/ops/hierarchical/chunk_exchange.h"
#include "horon/ops/host/host_refusal.h"

namespace horon::ops {
namespace {

// A short entry must stay exact, and would be rounded together with the others of its batch.
WireType wire_type_for(const core::Batch& batch, WireType allowed) {
  if (batch.int8_between_hosts) return WireType::int8_blocks();
  const bool has_short_entry = batch.shortest_entry > 0 && is_exact(batch.shortest_entry);
  return has_short_entry ? DataType::Float32 : allowed;
}

ExchangePlan plan_of(const ChunkedRun::Common& common, const core::Batch& batch,
                     int64_t piece_bytes) {
  return plan_exchange(common.layout, batch.dtype, batch.reduce_op, batch.count,
                       wire_type_for(batch, common.wire_type), common.constants, piece_bytes);
}

// All ranks give and take every chunk.
class ChunksOfAllreduce final : public Chunks {
 public:
  ChunksOfAllreduce(const ChunkedRun::Common& common, const core::Batch& batch, uint64_t number)
      : context_(*common.messages, common.layout, batch, plan_of(common, batch, batch.piece_bytes),
                 static_cast<int>(number % ExchangeWindow::kDistinct) * kTagsOfBatch) {}

  int64_t count() const override { return plan().chunks; }
  int64_t bytes_max() const override { return bytes(plan().chunk_elements); }
  int at_once() const override { return plan().chunks_at_once; }
  ChunkPlace place(int64_t index) const override {
    const ExchangePlan::Stretch chunk = plan().chunk(index);
    ChunkPlace place;
    place.input_begin = place.output_begin = bytes(chunk.begin);
    place.bytes = bytes(chunk.count);
    return place;
  }
  int64_t input_bytes() const override { return bytes(plan().count); }
  int64_t output_bytes() const override { return bytes(plan().count); }
  size_t work_bytes() const override {
    return ChunkExchange::memory_bytes(context_.layout, plan());
  }
  std::unique_ptr<ChunkWork> make_work(std::byte* memory) const override {
    return std::make_unique<ChunkExchange>(context_, memory);
  }

 private:
  const ExchangePlan& plan() const { return context_.plan; }
  int64_t bytes(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(context_.dtype));
  }

  const ExchangeContext context_;
};

}  // namespace

static_assert(ExchangeWindow::kDistinct * kTagsOfBatch <= Messages::kFirstBlockTag);

std::string HierarchicalAllreduce::refusal(const core::BatchFacts& facts) const {
  return host_refusal(facts, CollectiveKind::Allreduce);
}

core::PieceSizes HierarchicalAllreduce::piece_sizes(const core::Batch& like) const {
  const auto bytes_of_chunk = [&](int64_t piece_bytes) {
    return plan_of(common_, like, piece_bytes).chunk_elements *
           static_cast<int64_t>(size_of(like.dtype));
  };
  return {bytes_of_chunk(1), bytes_of_chunk(std::numeric_limits<int64_t>::max()),
          bytes_of_chunk(0)};
}

bool HierarchicalAllreduce::same_in_parts(const core::Batch& like) const {
  return !plan_of(common_, like, 0).wire_type.narrows(like.dtype);
}

std::unique_ptr<core::InFlight> HierarchicalAllreduce::start(core::Batch batch) {
  if (batch.count == 0) return std::make_unique<core::FinishedFlight>();
  const uint64_t number = common_.window.take_number();
  auto chunks = std::make_unique<ChunksOfAllreduce>(common_, batch, number);
  return std::make_unique<ChunkedRun>(common_, number, std::move(batch), std::move(chunks));
}

}  // namespace horon::ops

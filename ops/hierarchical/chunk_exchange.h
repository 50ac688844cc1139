// One chunk of an allreduce on its way between the hosts, driven by one rank of each of them.
//
// One round: the chunk of this host goes to all other hosts, and what they send is added here. Two
// rounds: each host gets its part of the chunk from all others, adds it, and sends the result to
// all of them. Hosts start with their next neighbour, so that not all send to the same one.
//
// Float32 may be rounded for the wire (wire_type.h). The host that adds a part then uses the
// rounded result itself, as the others get it: all ranks have the same bits.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "horon/ops/hierarchical/chunks.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/host_sums.h"
#include "horon/ops/hierarchical/messages.h"

namespace horon::ops {

// What the chunks of one batch have in common; it outlives them.
struct ExchangeContext {
  // `between` and `hosts` outlive it. `plan_of_batch`: the same on all ranks.
  ExchangeContext(Messages& between, const HostsLayout& hosts, const core::Batch& batch,
                  const ExchangePlan& plan_of_batch, int tag);

  Messages& messages;
  const HostsLayout& layout;
  const ExchangePlan plan;
  const HostSums sums;
  const DataType dtype;
  const int first_tag;  // of kTagsOfBatch
};
inline constexpr int kTagsOfBatch = 2 * kChunksOfLaneWithTags;  // one tag for each round

class ChunkExchange final : public ChunkWork {
 public:
  // `memory`: memory_bytes(), 64-byte aligned. The context must outlive the object.
  ChunkExchange(const ExchangeContext& context, std::byte* memory);
  static size_t memory_bytes(const HostsLayout& layout, const ExchangePlan& plan);

  int64_t begin(int64_t index, std::span<const std::byte* const> inputs,
                std::span<std::byte* const> outputs) override;
  int64_t advance() override;
  // The second round: each host waits for the results of the others.
  bool is_waited_for() const override {
    return stage_ == Stage::Gathering && !context_.plan.one_round;
  }
  bool over() const override { return stage_ == Stage::Over; }
  int64_t index() const override { return index_; }

 private:
  enum class Stage : uint8_t { Gathering, Returning, Over };
  using UnderWay = std::optional<Messages::Id>;
  // What goes to and comes from one other host; empty before and after its message.
  struct Traffic {
    int host = 0;
    int peer = 0;
    UnderWay sum_out;
    UnderWay sum_in;
    UnderWay result_out;
    UnderWay result_in;
    bool wants_result = false;
  };

  int tag(int round) const;
  ExchangePlan::Stretch part_of(int host) const;
  std::byte* received(int host) const;
  const std::byte* own_sum(const ExchangePlan::Stretch& part) const;
  std::byte* result_place(const ExchangePlan::Stretch& part) const;
  void spread_result(const ExchangePlan::Stretch& part);
  void send_sums();
  bool take(UnderWay& message);
  bool any(UnderWay Traffic::*message) const;
  int64_t gather();
  void add_part(const ExchangePlan::Stretch& part);
  void return_part(const ExchangePlan::Stretch& part);
  int64_t fetch_results();
  int64_t wire_bytes(int64_t elements) const { return context_.plan.wire_type.bytes(elements); }
  int64_t bytes(int64_t elements) const {
    return elements * static_cast<int64_t>(size_of(context_.dtype));
  }
  int64_t result_bytes(int64_t elements) const {
    return narrowed() ? wire_bytes(elements) : bytes(elements);
  }
  bool narrowed() const { return context_.sums.narrowed(); }

  const ExchangeContext& context_;
  std::byte* const sum_memory_;
  std::byte* const received_memory_;
  Stage stage_ = Stage::Over;
  int64_t index_ = 0;
  ExchangePlan::Stretch chunk_;
  std::vector<const std::byte*> inputs_;  // [local rank]
  std::vector<std::byte*> outputs_;       // [local rank]
  const std::byte* sum_ = nullptr;        // of this host: sum_memory_, or the input of its one rank
  std::vector<Traffic> traffic_;          // by distance
  std::vector<const std::byte*> sums_of_hosts_;
  std::vector<std::byte*> part_outputs_;
};

}  // namespace horon::ops

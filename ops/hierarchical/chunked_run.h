// One collective between hosts that goes in chunks (chunks.h), as one rank steps it. Several chunks
// are under way at a time, so the wire and the memory are busy together.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "horon/core/bootstrap/topology.h"
#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/scratch_pool.h"
#include "horon/core/host/local_group.h"
#include "horon/ops/choice/machine_constants.h"
#include "horon/ops/hierarchical/chunks.h"
#include "horon/ops/hierarchical/exchange_plan.h"
#include "horon/ops/hierarchical/exchange_window.h"
#include "horon/ops/hierarchical/host_cells.h"
#include "horon/ops/hierarchical/host_share.h"
#include "horon/ops/hierarchical/messages.h"
#include "horon/ops/host/scratch_loan.h"

namespace horon::ops {

// The parts that collectives in chunks use.
struct BetweenHosts {
  core::Topology topology;  // of the members
  std::shared_ptr<Messages> messages;
  std::shared_ptr<core::ScratchPool> scratch;
  // The members of this host, and HostCells::bytes() of zeroed memory that they share, 64-byte
  // aligned and used by these collectives alone. Ignored if this member is alone on its host. The
  // group outlives them.
  core::LocalGroup* group = nullptr;
  std::byte* area = nullptr;
  WireType wire_type;          // allowed for all reductions; the same on all ranks
  MachineConstants constants;  // the same on all ranks
};

class ChunkedRun final : public core::InFlight {
 public:
  // What the collectives that share a window have in common; it outlives them.
  struct Common {
    explicit Common(BetweenHosts parts);
    HostsLayout layout;
    std::shared_ptr<Messages> messages;
    std::shared_ptr<core::ScratchPool> scratch;
    core::LocalGroup* group;
    WireType wire_type;
    MachineConstants constants;
    std::unique_ptr<HostCells> cells;  // null if this rank is alone on its host
    ExchangeWindow window;
  };
  // The size of BetweenHosts::area.
  static size_t area_bytes(const core::Topology& topology);

  // `number`: taken from the window. `chunks`: of the batch.
  ChunkedRun(Common& common, uint64_t number, core::Batch batch, std::unique_ptr<Chunks> chunks);

  core::Progress step() override;

 private:
  int64_t next_chunk() const {
    return next_of_lane_ * common_.layout.lanes + common_.layout.local_rank;
  }
  bool begin();
  int64_t take_turn();
  int64_t advance_one();
  void note_over();
  bool is_waited_for() const;
  bool can_begin_chunk();
  int64_t begin_chunk();
  core::Progress leave();

  Common& common_;
  const uint64_t number_;
  const core::Batch batch_;
  const std::unique_ptr<Chunks> chunks_;
  HostShare share_;
  bool posted_ = false;
  int64_t chunks_of_lane_ = 0;  // chunks that this rank drives; the next three count among them
  int64_t next_of_lane_ = 0;
  int64_t over_of_lane_ = 0;
  int64_t in_flight_ = 0;
  ScratchLoan memory_;
  std::vector<std::unique_ptr<ChunkWork>> work_;
  size_t next_work_ = 0;
  static constexpr int kTurns = 3;
  int next_turn_ = 0;  // what take_turn() does: advance, begin or copy
};

}  // namespace horon::ops

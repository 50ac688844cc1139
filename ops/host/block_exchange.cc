#include "horon/ops/host/block_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/ops/host/block_plan.h"
#include "horon/ops/host/block_reduction.h"
#include "horon/ops/host/block_transfer.h"
#include "horon/ops/host/exchange_offer.h"
#include "horon/ops/host/exchange_peers.h"
#include "horon/ops/host/few_looks.h"
#include "horon/ops/host/map_if_needed.h"
#include "horon/ops/host/ring_lines.h"
#include "horon/ops/host/stream_copy.h"

namespace horon::ops {
namespace {

using core::Progress;

constexpr int64_t kExchangeStepBytes = 2 << 20;  // read or copied in one step
constexpr int64_t kOwnPieceBytes = 256 << 10;
// From this size on the memory of all ranks together does not fit into the caches of a usual host.
constexpr int64_t kStreamedBytes = 32 << 20;

}  // namespace

class BlockExchange::Running final : public core::InFlight {
 public:
  Running(BlockExchange& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        plan_(make_block_plan(batch_, parent.rank_, parent.ranks_)),
        number_(parent.next_++),
        cell_(parent.cell(number_)),
        has_root_(core::has_root(batch_.kind)),
        is_root_(has_root_ && batch_.root == parent.rank_),
        ring_piece_bytes_(ring_piece_bytes(parent.ranks_, plan_.one_for_all)),
        peers_(parent.group_, cell_, plan_.reduces),
        rings_(parent.group_, cell_, parent.progress_, parent.rings_, ring_piece_bytes_,
               plan_.one_for_all ? 1 : parent.ranks_ - 1),
        streams_((plan_.input_bytes + plan_.output_bytes) * parent.ranks_ > kStreamedBytes) {
    if (plan_.reduces || own_from() == own_to()) own_copied_ = own_bytes();
    post();
  }

  Progress step() override {
    if (!posted_ && !post()) {
      parent_.reuse_.announce();
      if (!post()) return Progress::Ringing;
    }
    int64_t moved = looks_.see([this] { return peers_here(); }) ? work() : 0;
    if (moved == 0) moved = copy_own();
    if (finished()) return leave();
    if (moved > 0) return Progress::Advanced;
    parent_.progress_.announce();
    if (peers_here()) moved = work();
    return moved > 0 || finished() ? Progress::Advanced : Progress::Ringing;
  }

 private:
  // Tells the others where this rank's memory lies, if all ranks have left the cell's last
  // exchange.
  bool post() {
    const uint64_t uses = number_ / kCells;
    const auto ranks = static_cast<uint64_t>(parent_.ranks_);
    if (cell_.left().load(std::memory_order_seq_cst) < uses * ranks) return false;
    posted_ = true;
    pairs_ = offer_memory(parent_.group_, cell_, batch_, plan_, parent_.by_kernel_);
    all_arrived_ = (uses + 1) * ranks;
    cell_.member(parent_.rank_)
        .arrivals.store(static_cast<uint32_t>(uses + 1), std::memory_order_seq_cst);
    const uint64_t arrived = cell_.arrived().fetch_add(1, std::memory_order_seq_cst) + 1;
    wake_those_who_waited(arrived == all_arrived_);
    return true;
  }

  // Wakes the ranks that waited for this one, or for the last one. If there is a root, only it
  // waits for all.
  void wake_those_who_waited(bool is_last) {
    if (is_root_ || (is_last && !has_root_)) {
      parent_.progress_.wake_all();
    } else if (is_last) {
      parent_.progress_.wake_one(batch_.root);
    }
  }

  // Whether those that this rank exchanges with have arrived.
  bool peers_here() const {
    if (has_root_ && !is_root_) {
      return cell_.member(batch_.root).arrivals.load(std::memory_order_seq_cst) ==
             static_cast<uint32_t>(number_ / kCells + 1);
    }
    return cell_.arrived().load(std::memory_order_seq_cst) == all_arrived_;
  }

  bool finished() const {
    const bool own_done = plan_.reduces ? own_bytes() == 0 || (reduction_ && reduction_->complete())
                                        : own_copied_ == own_bytes();
    return own_done &&
           (pairs_ == 0 ||
            cell_.member(parent_.rank_).finished_pairs.load(std::memory_order_seq_cst) == pairs_);
  }

  // The block that this rank sends itself.
  const std::byte* own_from() const {
    return batch_.input + plan_.send[static_cast<size_t>(parent_.rank_)].begin;
  }
  std::byte* own_to() const { return output_from(parent_.rank_); }
  // Where the block that comes from a rank goes.
  std::byte* output_from(int rank) const {
    const auto from = static_cast<size_t>(rank);
    return batch_.output_blocks.empty() ? batch_.output + plan_.receive[from].begin
                                        : batch_.output_blocks[from];
  }
  int64_t own_bytes() const { return plan_.receive[static_cast<size_t>(parent_.rank_)].bytes; }

  int64_t copy_own() {
    const int64_t bytes = std::min(own_bytes() - own_copied_, kOwnPieceBytes);
    if (bytes > 0) copy(own_to() + own_copied_, own_from() + own_copied_, bytes);
    own_copied_ += bytes;
    return bytes;
  }

  void copy(std::byte* to, const std::byte* from, int64_t bytes) const {
    if (streams_) {
      stream_copy(to, from, static_cast<size_t>(bytes));
    } else {
      core::copy_bytes(to, from, static_cast<size_t>(bytes));
    }
  }

  // The peers are here. Returns the bytes of what it has done; 0 if there is nothing to do now.
  int64_t work() {
    if (!std::exchange(knows_peers_, true)) meet_peers();
    int64_t bytes = 0;
    while (bytes < kExchangeStepBytes) {
      const int64_t more = rings_.feed() + (plan_.reduces ? reduce() : move());
      if (more == 0) break;
      bytes += more;
    }
    return bytes;
  }

  // Maps what this rank needs of the others' memory, which may throw.
  void meet_peers() {
    if (plan_.reduces) {
      reduction_.emplace(peers_, cell_, batch_, own_from(), own_bytes(), parent_.rank_,
                         parent_.ranks_);
    } else {
      for_each_other(parent_.rank_, parent_.ranks_, [&](int other) {
        add_incoming(other);
        add_outgoing(other);
      });
    }
    find_ring_readers();
  }

  void add_incoming(int from) {
    const Block& block = plan_.receive[static_cast<size_t>(from)];
    if (block.bytes == 0) return;
    const Way way_here = peers_.way(from, parent_.rank_);
    if (way_here == Way::Push) return;
    add(incoming_,
        {from, parent_.rank_, way_here, &cell_.pair(from, parent_.rank_), nullptr,
         output_from(from), peers_.kernel_reads(from),
         way_here == Way::Ring ? Pieces::in_ring(block.bytes, ring_piece_bytes_)
                               : Pieces::direct(block.bytes, parent_.ranks_)},
        [&](BlockTransfer& transfer) { transfer.from = peers_.block_of(from); });
  }

  void add_outgoing(int to) {
    const Block& block = plan_.send[static_cast<size_t>(to)];
    if (block.bytes == 0) return;
    const Way way_there = peers_.way(parent_.rank_, to);
    if (way_there != Way::Together && way_there != Way::Push) return;
    ExchangePair& pair = cell_.pair(parent_.rank_, to);
    add(outgoing_,
        {parent_.rank_, to, way_there, &pair, batch_.input + block.begin, nullptr,
         peers_.kernel_writes(to), Pieces::direct(block.bytes, parent_.ranks_)},
        [&](BlockTransfer& transfer) { transfer.to = peers_.place_in(to); });
  }

  // Not if the other rank has taken all pieces.
  template <class Map>
  static void add(std::vector<BlockTransfer>& transfers, BlockTransfer transfer, const Map& map) {
    const auto is_needed = [&] { return !transfer.exhausted(); };
    if (map_if_needed(is_needed, [&] { map(transfer); })) transfers.push_back(transfer);
  }

  void find_ring_readers() {
    for_each_other(parent_.rank_, parent_.ranks_, [&](int to) {
      const Block& block = plan_.send[static_cast<size_t>(to)];
      if (block.bytes == 0 || peers_.way(parent_.rank_, to) != Way::Ring) return;
      rings_.add(to, batch_.input + block.begin, block.bytes);
    });
  }

  // Copies one piece of some block. Blocks for others come first: two ranks that store into each
  // other's output take less time than two that read each other's input. Then comes the own block,
  // which nobody else copies.
  int64_t move() {
    if (const int64_t bytes = move_one_of(outgoing_); bytes > 0) return bytes;
    if (const int64_t bytes = copy_own(); bytes > 0) return bytes;
    return move_one_of(incoming_);
  }

  int64_t move_one_of(std::vector<BlockTransfer>& transfers) {
    uint64_t piece = 0;
    for (BlockTransfer& transfer : transfers) {
      if (!transfer.take(piece)) continue;
      const int64_t bytes = transfer.pieces.bytes(piece);
      const int64_t begin = transfer.pieces.begin(piece);
      const bool in_ring = transfer.way == Way::Ring;
      if (in_ring) {
        copy_out_of_ring(transfer, piece);
      } else {
        copy_piece(transfer, begin, bytes);
      }
      const bool complete = transfer.note_copied();
      if (complete) finish_pair(transfer.from_rank, transfer.to_rank);
      if (in_ring && !complete) parent_.progress_.wake_one(transfer.from_rank);
      return bytes;
    }
    return 0;
  }

  void copy_piece(const BlockTransfer& transfer, int64_t begin, int64_t bytes) const {
    std::byte* const to = transfer.to + begin;
    const std::byte* const from = transfer.from + begin;
    if (!transfer.kernel_copies) return copy(to, from, bytes);
    const auto size = static_cast<size_t>(bytes);
    if (transfer.from_rank == parent_.rank_) {
      parent_.group_.write(transfer.to_rank, reinterpret_cast<uint64_t>(to), from, size);
    } else {
      parent_.group_.read(transfer.from_rank, to, reinterpret_cast<uint64_t>(from), size);
    }
  }

  void copy_out_of_ring(BlockTransfer& transfer, uint64_t piece) const {
    if (transfer.ring == nullptr) transfer.ring = peers_.ring_of(transfer.from_rank);
    std::byte* const place = transfer.ring + transfer.pieces.ring_place(piece);
    const int64_t bytes = transfer.pieces.bytes(piece);
    copy(transfer.to + transfer.pieces.begin(piece), place, bytes);
    const bool others_read_it = plan_.one_for_all && parent_.ranks_ > 2;
    if (!others_read_it) take_lines(place, bytes);
  }

  // Reduces one piece of this rank's own block.
  int64_t reduce() {
    const int64_t bytes = reduction_->reduce_piece();
    if (bytes == 0) return 0;
    reduction_->for_each_ring([this](int rank) { parent_.progress_.wake_one(rank); });
    if (reduction_->complete()) {
      for_each_other(parent_.rank_, parent_.ranks_,
                     [this](int from) { finish_pair(from, parent_.rank_); });
    }
    return bytes;
  }

  // Tells the two ranks of a complete block, if they wait for it.
  void finish_pair(int from, int to) {
    note_finished(to);
    if (cell_.member(from).input_reached != Reached::InCell) note_finished(from);
  }

  void note_finished(int rank) {
    ExchangeMember& member = cell_.member(rank);
    const uint32_t count = member.finished_pairs.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (count == member.pairs && rank != parent_.rank_) parent_.progress_.wake_one(rank);
  }

  Progress leave() {
    rings_.give_back();
    const uint64_t left = cell_.left().fetch_add(1, std::memory_order_seq_cst) + 1;
    if (left == all_arrived_) parent_.reuse_.wake_all();
    return Progress::Done;
  }

  BlockExchange& parent_;
  core::Batch batch_;
  const BlockPlan plan_;
  const uint64_t number_;
  const ExchangeCell cell_;
  const bool has_root_;
  const bool is_root_;
  const int64_t ring_piece_bytes_;
  const ExchangePeers peers_;
  RingFeeds rings_;
  const bool streams_;  // past the caches
  bool posted_ = false;
  FewLooks looks_;
  bool knows_peers_ = false;
  uint64_t all_arrived_ = 0;  // the cell's counts of arrivals, and of departures, with all of them
  uint32_t pairs_ = 0;        // that this rank waits for
  int64_t own_copied_ = 0;    // bytes
  std::vector<BlockTransfer> outgoing_;
  std::vector<BlockTransfer> incoming_;
  std::optional<BlockReduction> reduction_;  // of a reducescatter, once all ranks are here
};

BlockExchange::BlockExchange(core::LocalGroup& group, std::byte* area, bool by_kernel)
    : group_(group),
      rank_(group.local_rank()),
      ranks_(group.local_size()),
      progress_(group, area),
      reuse_(group, area + Waiters::area_bytes(ranks_)),
      cells_(area + 2 * Waiters::area_bytes(ranks_)),
      by_kernel_(by_kernel),
      rings_(group) {}

size_t BlockExchange::area_bytes(int ranks) {
  return 2 * Waiters::area_bytes(ranks) + kCells * ExchangeCell::bytes(ranks);
}

ExchangeCell BlockExchange::cell(uint64_t number) const {
  return {cells_ + number % kCells * ExchangeCell::bytes(ranks_), ranks_};
}

std::unique_ptr<core::InFlight> BlockExchange::start(core::Batch batch) {
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops

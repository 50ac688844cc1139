#include "horon/ops/host/piece_allreduce.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"
#include "horon/ops/host/host_kernels.h"
#include "horon/ops/host/map_if_needed.h"

namespace horon::ops {
namespace {

using core::Progress;

constexpr int64_t kPieceBytesMin = 32 << 10;
constexpr int64_t kPieceBytesMax = 256 << 10;
// Limits for a length that was asked for. Shorter pieces would mostly be counting. Longer ones
// would neither fit twice into a ring nor, read from two ranks, into a step.
constexpr int64_t kWishedBytesMin = 4 << 10;
constexpr int64_t kWishedBytesMax = 1 << 20;
constexpr int64_t kStepBytes = 2 << 20;  // read or copied in one step
constexpr int64_t kRingBytes = 2 << 20;  // of a rank that stages
static_assert(kRingBytes >= 2 * std::max(kPieceBytesMax, kWishedBytesMax));

}  // namespace

// Pieces are numbered throughout all allreduces of a cell; those of this one begin at base_.
class PieceAllreduce::Running final : public core::InFlight {
 public:
  Running(PieceAllreduce& parent, core::Batch batch)
      : parent_(parent),
        batch_(std::move(batch)),
        ranks_(parent.ranks_),
        staged_max_(staged_max(ranks_)) {
    const uint64_t index = parent.next_++ % kCells;
    OwnCell& own = parent.own_[index];
    bytes_ = batch_.count * static_cast<int64_t>(size_of(batch_.dtype));
    piece_bytes_ = PieceAllreduce::piece_bytes(bytes_, ranks_, batch_.piece_bytes);
    in_ring_ = std::min(staged_max_, static_cast<uint64_t>(kRingBytes / piece_bytes_));
    base_ = own.pieces;
    end_ = base_ + static_cast<uint64_t>((bytes_ + piece_bytes_ - 1) / piece_bytes_);
    use_ = own.uses++;
    own.pieces = end_;
    copied_in_ = copied_out_ = base_;
    next_own_ = base_ + static_cast<uint64_t>(parent.rank_);
    cell_ = &parent.shared_cell(index);
    contributions_ = parent.contributions(*cell_);
    left_ = parent.left(*cell_);
    pieces_done_ = parent.pieces_done(*cell_);
    post();
  }

  Progress step() override {
    if (!posted_) {
      if (!post()) parent_.reuse_.announce();
      if (!posted_ && !post()) return Progress::Ringing;
    }
    bool moved = false;
    for (int64_t bytes = 0; bytes < kStepBytes;) {
      const int64_t more = copy_out() + copy_in() + sum();
      if (more == 0) break;
      bytes += more;
      moved = true;
    }
    if (finished()) return leave();
    if (moved) return Progress::Advanced;
    parent_.progress_.announce();
    return finished() || can_sum() || can_copy_out() ? Progress::Advanced : Progress::Ringing;
  }

 private:
  // Publishes the address of this rank's memory, if all ranks have finished the cell's last
  // allreduce.
  bool post() {
    for (int rank = 0; rank < ranks_; ++rank) {
      if (left_[rank].value.load(std::memory_order_seq_cst) < use_) return false;
    }
    posted_ = true;
    Contribution& mine = contributions_[parent_.rank_];
    const auto bytes = static_cast<size_t>(bytes_);
    const auto input = parent_.group_.locate(batch_.input, bytes);
    const auto output = batch_.wants_output ? parent_.group_.locate(batch_.output, bytes) : input;
    staged_ = !input || !output;
    mine.staged = staged_ ? 1 : 0;
    mine.wants_output = batch_.wants_output ? 1 : 0;
    if (staged_) {
      take_staging();
      const auto ring = parent_.group_.locate(staging_.get(), kRingBytes);
      HORON_CHECK(ring.has_value(), "staging memory must be shareable");
      mine.input = mine.output = *ring;
    } else {
      mine.input = *input;
      mine.output = *output;
      publish(end_);
    }
    return true;
  }

  void take_staging() {
    if (parent_.staging_.empty()) {
      staging_ = parent_.group_.allocate_scratch(kRingBytes);
      return;
    }
    staging_ = std::move(parent_.staging_.back());
    parent_.staging_.pop_back();
  }

  // Makes the pieces below `available` ready on this rank. Wakes the others if pieces can now be
  // summed that this rank will not sum at once.
  void publish(uint64_t available) {
    contributions_[parent_.rank_].available.store(available, std::memory_order_seq_cst);
    const uint64_t open_end = open();
    if (open_end == base_) return;
    const bool at_front = !staged_ || open_end == available;
    const bool several = open_end > cell_->claimed.value.load(std::memory_order_seq_cst) + 1;
    if (several || (at_front && anyone_stages())) parent_.progress_.wake_all();
  }

  // Whether any rank that has posted stages.
  bool anyone_stages() const {
    return std::any_of(contributions_, contributions_ + ranks_,
                       [](const Contribution& one) { return one.staged != 0; });
  }

  // The pieces below the returned one are available on all ranks. A rank that has not posted stands
  // at base_, the end of the cell's last allreduce, which all ranks have finished.
  uint64_t open() {
    if (all_open_) return end_;
    uint64_t least = end_;
    for (int rank = 0; rank < ranks_; ++rank) {
      least = std::min(least, contributions_[rank].available.load(std::memory_order_seq_cst));
    }
    all_open_ = least == end_;
    return least;
  }

  bool can_sum() {
    if (!know_peers()) return false;
    return (any_staged_ ? next_own_ : cell_->claimed.value.load(std::memory_order_seq_cst)) <
           open();
  }
  bool all_claimed() const { return cell_->claimed.value.load(std::memory_order_seq_cst) == end_; }
  bool all_summed() const { return cell_->done.value.load(std::memory_order_seq_cst) == end_; }
  bool finished() const { return copied_out_ == (staged_ ? end_ : base_) && all_summed(); }

  // The functions below do one piece of work, if there is any, and return its bytes.
  int64_t sum() {
    if (!know_peers()) return 0;
    const uint64_t piece = any_staged_ ? take_own() : claim();
    if (piece == end_) return 0;
    const int64_t bytes = bytes_of(piece);
    peers_.piece_outputs.clear();
    for (size_t rank = 0; rank < peers_.inputs.size(); ++rank) {
      const int64_t offset = peers_.reads_ring[rank] ? staging_offset(piece) : user_offset(piece);
      peers_.piece_inputs[rank] = peers_.inputs[rank] + offset;
      std::byte* const output = peers_.outputs[rank];
      if (output != nullptr) peers_.piece_outputs.push_back(output + offset);
    }
    const Reduction reduction = {batch_.dtype, batch_.reduce_op, batch_.prescale, batch_.postscale,
                                 batch_.divisor};
    reduce_many(reduction, peers_.piece_inputs, peers_.piece_outputs,
                bytes / static_cast<int64_t>(size_of(batch_.dtype)));
    note_summed(piece);
    return bytes * ranks_;
  }

  // Claims an available piece for this rank; end_ if there is none.
  uint64_t claim() {
    const uint64_t open_end = open();
    uint64_t piece = cell_->claimed.value.load(std::memory_order_seq_cst);
    while (piece < open_end) {
      if (cell_->claimed.value.compare_exchange_weak(piece, piece + 1)) return piece;
    }
    return end_;
  }

  uint64_t take_own() {
    if (next_own_ >= open()) return end_;
    // The next allreduce in this cell expects all pieces to be claimed.
    cell_->claimed.value.fetch_add(1, std::memory_order_seq_cst);
    return std::exchange(next_own_, next_own_ + static_cast<uint64_t>(ranks_));
  }

  bool is_own(uint64_t piece) const {
    return (piece - base_) % static_cast<uint64_t>(ranks_) == static_cast<uint64_t>(parent_.rank_);
  }

  void note_summed(uint64_t piece) {
    if (any_staged_) {
      pieces_done_[piece % staged_max_].value.store(piece + 1, std::memory_order_seq_cst);
    }
    const uint64_t done = cell_->done.value.fetch_add(1, std::memory_order_seq_cst) + 1;
    if (done == end_) {
      parent_.progress_.wake_all();
    } else if (any_staged_) {
      parent_.progress_.wake_if(
          [this](int rank) { return peers_.reads_ring[static_cast<size_t>(rank)]; });
    }
  }

  // Whether all ranks have posted and there may be a piece for this one to sum. If so, maps their
  // memory into this process, which may throw; so it is called before a piece is claimed.
  bool know_peers() {
    if (!peers_.inputs.empty()) return true;
    if (open() == base_) return false;
    return map_if_needed([this] { return !all_claimed(); }, [this] { map_peers(); });
  }

  void map_peers() {
    Peers peers = parent_.take_spare_peers();
    for (int rank = 0; rank < ranks_; ++rank) {
      const Contribution& theirs = contributions_[rank];
      peers.reads_ring.push_back(theirs.staged != 0 && rank != parent_.rank_);
      if (rank == parent_.rank_) {
        peers.inputs.push_back(const_cast<std::byte*>(batch_.input));
        peers.outputs.push_back(batch_.wants_output ? batch_.output : nullptr);
        continue;
      }
      std::byte* input = parent_.group_.map(rank, theirs.input);
      peers.inputs.push_back(input);
      const bool in_place = is_same(theirs.input, theirs.output);
      std::byte* output = nullptr;
      if (theirs.wants_output != 0) {
        output = in_place ? input : parent_.group_.map(rank, theirs.output);
      }
      peers.outputs.push_back(output);
    }
    peers.piece_inputs.resize(peers.inputs.size());
    peers.piece_outputs.reserve(peers.inputs.size());
    peers_ = std::move(peers);
    any_staged_ = anyone_stages();
  }

  static bool is_same(const core::SharedAddress& a, const core::SharedAddress& b) {
    return a.segment == b.segment && a.generation == b.generation && a.offset == b.offset;
  }

  // Pieces that this rank sums itself are not copied: it reads them from its own memory.
  int64_t copy_in() {
    if (!staged_ || copied_in_ == end_ || copied_in_ == copied_out_ + in_ring_) return 0;
    const int64_t bytes = is_own(copied_in_) ? 1 : bytes_of(copied_in_);
    if (!is_own(copied_in_)) {
      core::copy_bytes(staging_.get() + staging_offset(copied_in_),
                       batch_.input + user_offset(copied_in_), static_cast<size_t>(bytes));
    }
    publish(++copied_in_);
    return bytes;
  }

  bool can_copy_out() const {
    if (!staged_ || copied_out_ == copied_in_) return false;
    if (is_own(copied_out_)) return copied_out_ < next_own_;
    return pieces_done_[copied_out_ % staged_max_].value.load(std::memory_order_seq_cst) ==
           copied_out_ + 1;
  }

  int64_t copy_out() {
    if (!can_copy_out()) return 0;
    const int64_t bytes = is_own(copied_out_) ? 1 : bytes_of(copied_out_);
    if (!is_own(copied_out_) && batch_.wants_output) {
      core::copy_bytes(batch_.output + user_offset(copied_out_),
                       staging_.get() + staging_offset(copied_out_), static_cast<size_t>(bytes));
    }
    ++copied_out_;
    return bytes;
  }

  Progress leave() {
    if (staged_) parent_.staging_.push_back(std::move(staging_));
    parent_.keep_spare(std::move(peers_));
    left_[parent_.rank_].value.store(use_ + 1, std::memory_order_seq_cst);
    parent_.reuse_.wake_all();
    return Progress::Done;
  }

  int64_t user_offset(uint64_t piece) const {
    return static_cast<int64_t>(piece - base_) * piece_bytes_;
  }
  int64_t staging_offset(uint64_t piece) const {
    return static_cast<int64_t>(piece % in_ring_) * piece_bytes_;
  }
  int64_t bytes_of(uint64_t piece) const {
    return std::min(piece_bytes_, bytes_ - user_offset(piece));
  }

  PieceAllreduce& parent_;
  core::Batch batch_;
  const int ranks_;
  const uint64_t staged_max_;
  int64_t bytes_ = 0;
  int64_t piece_bytes_ = 0;
  uint64_t in_ring_ = 0;  // pieces that a ring holds
  uint64_t base_ = 0;
  uint64_t end_ = 0;
  uint64_t use_ = 0;  // the number of earlier allreduces in this cell
  SharedCell* cell_ = nullptr;
  Contribution* contributions_ = nullptr;  // [rank]
  core::SharedCounter* left_ = nullptr;    // [rank]
  core::SharedCounter* pieces_done_ = nullptr;
  bool posted_ = false;
  bool staged_ = false;
  bool all_open_ = false;
  uint64_t copied_in_ = 0;  // the next piece to copy in
  uint64_t copied_out_ = 0;
  uint64_t next_own_ = 0;
  std::shared_ptr<std::byte> staging_;
  Peers peers_;  // empty until all ranks have posted
  bool any_staged_ = false;
};

PieceAllreduce::PieceAllreduce(core::LocalGroup& group, std::byte* area)
    : group_(group),
      rank_(group.local_rank()),
      ranks_(group.local_size()),
      progress_(group, area),
      reuse_(group, area + Waiters::area_bytes(ranks_)),
      cells_(area + 2 * Waiters::area_bytes(ranks_)) {}

// A ring holds 64 of the shortest pieces. For a few ranks, 8 keep all of them busy.
uint64_t PieceAllreduce::staged_max(int ranks) {
  return static_cast<uint64_t>(std::clamp(ranks, 8, static_cast<int>(kRingBytes / kPieceBytesMin)));
}

size_t PieceAllreduce::cell_bytes(int ranks) {
  return sizeof(SharedCell) +
         static_cast<size_t>(ranks) * (sizeof(Contribution) + sizeof(core::SharedCounter)) +
         staged_max(ranks) * sizeof(core::SharedCounter);
}

size_t PieceAllreduce::area_bytes(int ranks) {
  return 2 * Waiters::area_bytes(ranks) + kCells * cell_bytes(ranks);
}

// Four pieces for each rank share the work evenly. Shorter pieces cost more to claim than they
// gain; with longer ones the last piece ends late. The upper limit shrinks with the number of
// ranks, since one piece touches the memory of all of them.
int64_t PieceAllreduce::piece_bytes(int64_t bytes, int ranks, int64_t wish) {
  if (wish > 0) {
    const core::PieceSizes sizes = piece_sizes(bytes, ranks);
    return std::clamp(wish, sizes.least, sizes.most) / 64 * 64;
  }
  const int64_t longest = std::clamp(kStepBytes / ranks, kPieceBytesMin, kPieceBytesMax);
  return std::clamp(bytes / (int64_t{4} * ranks), kPieceBytesMin, longest) / 64 * 64;
}

core::PieceSizes PieceAllreduce::piece_sizes(int64_t bytes, int ranks) {
  return {kWishedBytesMin, std::clamp(kStepBytes / ranks, kPieceBytesMin, kWishedBytesMax),
          piece_bytes(bytes, ranks)};
}

PieceAllreduce::SharedCell& PieceAllreduce::shared_cell(uint64_t index) const {
  return *reinterpret_cast<SharedCell*>(cells_ + index * cell_bytes(ranks_));
}

PieceAllreduce::Contribution* PieceAllreduce::contributions(SharedCell& cell) const {
  return reinterpret_cast<Contribution*>(&cell + 1);
}

core::SharedCounter* PieceAllreduce::left(SharedCell& cell) const {
  return reinterpret_cast<core::SharedCounter*>(contributions(cell) + ranks_);
}

core::SharedCounter* PieceAllreduce::pieces_done(SharedCell& cell) const {
  return left(cell) + ranks_;
}

PieceAllreduce::Peers PieceAllreduce::take_spare_peers() {
  if (spare_peers_.empty()) return {};
  Peers peers = std::move(spare_peers_.back());
  spare_peers_.pop_back();
  return peers;
}

void PieceAllreduce::keep_spare(Peers peers) {
  if (peers.inputs.empty() || spare_peers_.size() == kCells) return;
  peers.inputs.clear();
  peers.outputs.clear();
  peers.reads_ring.clear();
  peers.piece_inputs.clear();
  peers.piece_outputs.clear();
  spare_peers_.push_back(std::move(peers));
}

std::unique_ptr<core::InFlight> PieceAllreduce::start(core::Batch batch) {
  HORON_CHECK(batch.count > 0, "an empty allreduce has no pieces");
  return std::make_unique<Running>(*this, std::move(batch));
}

}  // namespace horon::ops

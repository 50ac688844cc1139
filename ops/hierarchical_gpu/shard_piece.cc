#include "horon/ops/hierarchical_gpu/shard_piece.h"

#include <utility>

#include "horon/core/base/error.h"

namespace horon::ops {

using core::Progress;

namespace {

// New work in `queue` runs behind the work that is in `earlier`.
void wait_in(CudaQueue& queue, CudaQueue& earlier) {
  const bool waits = queue.wait_for(*earlier.record());
  HORON_CHECK(waits, "the streams of a device wait for each other");
}

}  // namespace

ShardPiece::ShardPiece(ShardTools& tools, core::Batch batch, const HostShards& shards,
                       uint64_t number)
    : tools_(tools),
      batch_(std::move(batch)),
      input_(batch_.input),
      reduction_(nccl_reduction(batch_)),
      shards_(shards),
      mine_(shards_.of(tools.layout.local_rank)),
      number_(number) {
  if (!alone()) {
    reduce_turn_ = tools_.reduce_line->take_turn();
    gather_turn_ = tools_.gather_line->take_turn();
  }
  if (has_shard()) start_between_hosts();
}

// The exchange between hosts applies the scale if no host adds before it. All hosts must give it
// numbers of one scale, so a rank alone on its host scales before if other hosts do.
bool ShardPiece::scales_before() const {
  return !tools_.layout.one_rank_each() && is_floating(batch_.dtype);
}

// Starts now, so that the pieces of a lane start in one order on all hosts. It only touches the
// memory when it is stepped.
void ShardPiece::start_between_hosts() {
  core::Batch shard = batch_;
  shard.device = DeviceKind::Host;
  shard.queue = nullptr;
  shard.input = shard.output = shard_on_host();
  shard.wants_output = true;  // the others of this host get it too
  shard.count = mine_.count;
  if (scales_before()) {
    shard.prescale = 1.0;
    shard.postscale = batch_.postscale / reduction_.part;
  }
  between_ = tools_.between->start(std::move(shard));
}

Progress ShardPiece::step() {
  for (;;) {
    switch (stage_) {
      case Stage::Reducing:
        if (!alone() && !tools_.reduce_line->may_call(reduce_turn_)) {
          return tools_.reduce_line->wait();
        }
        reduce();
        stage_ = Stage::ReduceCalled;
        break;
      case Stage::ReduceCalled:
        if (!alone() && !tools_.reduce_line->is_enqueued()) return Progress::Polling;
        if (has_shard()) copy_to_host();
        stage_ = Stage::LeavingDevice;
        break;
      case Stage::LeavingDevice:
        if (!happened()) return Progress::Polling;
        stage_ = Stage::BetweenHosts;
        break;
      case Stage::BetweenHosts:
        if (const Progress progress = exchange(); progress != Progress::Done) return progress;
        stage_ = Stage::Gathering;
        break;
      case Stage::Gathering:
        if (!alone() && !tools_.gather_line->may_call(gather_turn_)) {
          return tools_.gather_line->wait();
        }
        gather();
        stage_ = Stage::GatherCalled;
        break;
      case Stage::GatherCalled:
        if (!alone() && !tools_.gather_line->is_enqueued()) return Progress::Polling;
        event_ = (alone() ? tools_.to_device : tools_.sums).record();
        stage_ = Stage::EnteringDevice;
        break;
      case Stage::EnteringDevice:
        if (!happened()) return Progress::Polling;
        tools_.slots.give_back(number_);
        return Progress::Done;
    }
  }
}

Progress ShardPiece::exchange() {
  if (between_ == nullptr) return Progress::Done;
  const Progress progress = between_->step();
  if (progress != Progress::Done) {
    check();
    return progress;
  }
  between_.reset();
  tools_.to_device.copy_stretch(shard_on_device(), shard_on_host(), bytes_of_shard());
  return progress;
}

void ShardPiece::reduce() {
  const double factor = scales_before() ? batch_.prescale * reduction_.part : 1.0;
  if (factor != 1.0) {
    tools_.sums.launch(one_move(MoveLaunch::scale(batch_.dtype, batch_.dtype, factor), input_,
                                batch_.output, batch_.count));
    input_ = batch_.output;
  }
  if (alone()) return;
  tools_.reduce_line->call(tools_.sums, [&](NcclApi& nccl, NcclComm comm) {
    calls().reduce(nccl, comm, input_, batch_.output);
  });
}

void ShardPiece::copy_to_host() {
  wait_in(tools_.to_host, tools_.sums);
  tools_.to_host.copy_stretch(shard_on_host(), alone() ? input_ : shard_on_device(),
                              bytes_of_shard());
  event_ = tools_.to_host.record();
}

void ShardPiece::gather() {
  if (alone()) return;
  if (has_shard()) wait_in(tools_.sums, tools_.to_device);
  tools_.gather_line->call(tools_.sums, [&](NcclApi& nccl, NcclComm comm) {
    calls().gather(nccl, comm, batch_.output);
  });
}

bool ShardPiece::happened() {
  if (event_ == nullptr) return true;
  if (!event_->happened()) {
    check();
    return false;
  }
  event_.reset();
  return true;
}

void ShardPiece::check() const {
  if (!alone()) tools_.reduce_line->communicator().check();
}

ShardCalls ShardPiece::calls() const {
  return {shards_,
          reduction_.dtype,
          reduction_.op,
          tools_.layout.local_rank,
          tools_.layout.local_size,
          tools_.sums.stream()};
}

size_t ShardPiece::bytes_of_shard() const {
  return static_cast<size_t>(mine_.count) * size_of(batch_.dtype);
}

std::byte* ShardPiece::shard_on_device() const {
  return batch_.output + static_cast<size_t>(mine_.begin) * size_of(batch_.dtype);
}

}  // namespace horon::ops

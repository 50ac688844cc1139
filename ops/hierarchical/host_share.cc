#include "horon/ops/hierarchical/host_share.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "horon/core/base/error.h"

namespace horon::ops {

HostShare::HostShare(Parts parts)
    : parts_(parts),
      cell_(parts.number % HostCells::kCells),
      use_(parts.number / HostCells::kCells + 1) {
  if (!alone()) return;
  input_of_ = {const_cast<std::byte*>(parts_.batch->input)};
  output_of_ = {parts_.batch->output};
  is_staged_ = {false};
}

// Other ranks may still read it.
HostShare::~HostShare() {
  if (staging_.memory != nullptr) parts_.scratch->leak(std::move(staging_));
}

int64_t HostShare::offset(int64_t chunk) const {
  return parts_.plan->chunk(chunk).begin * static_cast<int64_t>(size_of(parts_.batch->dtype));
}

size_t HostShare::bytes(int64_t chunk) const {
  return static_cast<size_t>(parts_.plan->chunk(chunk).count) * size_of(parts_.batch->dtype);
}

// Twice what all lanes have under way: one half is copied while the other half is on its way.
int64_t HostShare::window() const {
  return std::min(parts_.plan->chunks, int64_t{2} * layout().lanes * parts_.plan->chunks_at_once);
}

int64_t HostShare::slot_bytes() const {
  return parts_.plan->chunk_elements * static_cast<int64_t>(size_of(parts_.batch->dtype));
}

std::byte* HostShare::slot(int64_t chunk) const {
  return staging_.memory.get() + offset_of_slot(chunk);
}

bool HostShare::post() {
  if (alone()) return true;
  const auto all_have_left = [this] {
    for (int rank = 0; rank < layout().local_size; ++rank) {
      if (parts_.cells->left(cell_, rank).load(std::memory_order_seq_cst) + 1 < use_) return false;
    }
    return true;
  };
  if (!all_have_left()) {
    parts_.cells->reuse().announce();
    if (!all_have_left()) return false;
  }
  const core::Batch& batch = *parts_.batch;
  const size_t size = static_cast<size_t>(batch.count) * size_of(batch.dtype);
  const auto input = parts_.group->locate(batch.input, size);
  const auto output = parts_.group->locate(batch.output, size);
  staged_ = !input || !output;
  HostCells::Contribution& mine = parts_.cells->contribution(cell_, layout().local_rank);
  mine.staged = staged_ ? 1 : 0;
  if (staged_) {
    const auto staging_size = static_cast<size_t>(window() * slot_bytes());
    staging_ = parts_.scratch->take(DeviceKind::Host, staging_size);
    const auto place = parts_.group->locate(staging_.memory.get(), staging_size);
    HORON_CHECK(place.has_value(), "scratch memory must be shareable");
    mine.input = mine.output = *place;
  } else {
    mine.input = *input;
    mine.output = *output;
  }
  publish(staged_ ? 0 : parts_.plan->chunks);
  return true;
}

void HostShare::publish(int64_t chunks) {
  std::atomic<uint64_t>& ready = parts_.cells->contribution(cell_, layout().local_rank).ready;
  ready.store(word(chunks), std::memory_order_seq_cst);
  parts_.cells->progress().wake_all();
}

bool HostShare::is_ready(int64_t chunk) {
  if (alone()) return true;
  for (int rank = 0; rank < layout().local_size; ++rank) {
    const bool own = rank == layout().local_rank;  // read where it lies, staged or not
    const uint64_t ready =
        parts_.cells->contribution(cell_, rank).ready.load(std::memory_order_seq_cst);
    if (ready < word(own ? 0 : chunk + 1)) return false;
  }
  if (input_of_.empty()) know_peers();
  return true;
}

void HostShare::know_peers() {
  std::vector<std::byte*> inputs;
  std::vector<std::byte*> outputs;
  is_staged_.clear();
  for (int rank = 0; rank < layout().local_size; ++rank) {
    if (rank == layout().local_rank) {
      inputs.push_back(const_cast<std::byte*>(parts_.batch->input));
      outputs.push_back(parts_.batch->output);
      is_staged_.push_back(false);
      continue;
    }
    const HostCells::Contribution& theirs = parts_.cells->contribution(cell_, rank);
    inputs.push_back(parts_.group->map(rank, theirs.input));
    outputs.push_back(parts_.group->map(rank, theirs.output));
    is_staged_.push_back(theirs.staged != 0);
  }
  output_of_ = std::move(outputs);
  input_of_ = std::move(inputs);
}

const std::vector<const std::byte*>& HostShare::inputs(int64_t chunk) {
  inputs_.clear();
  for (size_t rank = 0; rank < input_of_.size(); ++rank) {
    inputs_.push_back(input_of_[rank] + (is_staged_[rank] ? offset_of_slot(chunk) : offset(chunk)));
  }
  return inputs_;
}

const std::vector<std::byte*>& HostShare::outputs(int64_t chunk) {
  outputs_.clear();
  for (size_t rank = 0; rank < output_of_.size(); ++rank) {
    outputs_.push_back(output_of_[rank] +
                       (is_staged_[rank] ? offset_of_slot(chunk) : offset(chunk)));
  }
  return outputs_;
}

void HostShare::set_over(int64_t chunks_of_lane) {
  if (alone()) {
    copied_out_ = chunks_of_lane;  // one lane, and nothing is copied
    return;
  }
  const int lane = layout().local_rank;
  parts_.cells->over(cell_, lane).store(word(chunks_of_lane), std::memory_order_seq_cst);
  const bool last = chunks_of_lane == parts_.plan->chunks_of(lane, layout().lanes);
  parts_.cells->progress().wake_if(
      [&](int rank) { return last || parts_.cells->contribution(cell_, rank).staged != 0; });
}

bool HostShare::is_over(int64_t chunk) const {
  const int lane = static_cast<int>(chunk % layout().lanes);
  return parts_.cells->over(cell_, lane).load(std::memory_order_seq_cst) >=
         word(chunk / layout().lanes + 1);
}

int64_t HostShare::copy() { return staged_ ? copy_out() + copy_in() : 0; }

int64_t HostShare::copy_in() {
  if (copied_in_ == std::min(parts_.plan->chunks, copied_out_ + window())) return 0;
  const int64_t chunk = copied_in_++;
  int64_t copied = 1;
  if (!is_own(chunk)) {
    std::memcpy(slot(chunk), parts_.batch->input + offset(chunk), bytes(chunk));
    copied = static_cast<int64_t>(bytes(chunk));
  }
  publish(copied_in_);
  return copied;
}

int64_t HostShare::copy_out() {
  if (copied_out_ == copied_in_ || !is_over(copied_out_)) return 0;
  const int64_t chunk = copied_out_++;
  if (is_own(chunk)) return 1;
  std::memcpy(parts_.batch->output + offset(chunk), slot(chunk), bytes(chunk));
  return static_cast<int64_t>(bytes(chunk));
}

bool HostShare::over() const {
  if (alone() || staged_) return copied_out_ == parts_.plan->chunks;
  for (int lane = 0; lane < layout().lanes; ++lane) {
    const int64_t chunks = parts_.plan->chunks_of(lane, layout().lanes);
    if (chunks == 0) continue;  // nobody says that they are over
    if (parts_.cells->over(cell_, lane).load(std::memory_order_seq_cst) < word(chunks)) {
      return false;
    }
  }
  return true;
}

void HostShare::announce() {
  if (!alone()) parts_.cells->progress().announce();
}

void HostShare::leave() {
  if (alone()) return;
  if (staging_.memory != nullptr) {
    parts_.scratch->give_back(DeviceKind::Host, std::move(staging_), nullptr);
    staging_ = {};
  }
  parts_.cells->left(cell_, layout().local_rank).store(use_, std::memory_order_seq_cst);
  parts_.cells->reuse().wake_all();
}

}  // namespace horon::ops

#include "horon/ops/hierarchical/host_share.h"

#include <algorithm>

#include "horon/core/base/copy_bytes.h"
#include "horon/core/base/error.h"

namespace horon::ops {
namespace {

constexpr uint64_t kLow32 = 0xffffffff;

}  // namespace

HostShare::HostShare(Parts parts)
    : parts_(parts),
      cell_(parts.number % HostCells::kCells),
      use_(parts.number / HostCells::kCells + 1),
      staging_(parts.scratch) {
  if (!alone()) return;
  input_of_ = {own(parts_.batch->input, parts_.chunks->input_bytes())};
  output_of_ = {own(parts_.batch->output, parts_.chunks->output_bytes())};
}

// This rank reads its memory where it is, whether the others can or not.
HostShare::Memory HostShare::own(const std::byte* data, int64_t bytes) const {
  if (bytes == 0) return {};
  return {const_cast<std::byte*>(data), Lies::InPlace};
}

HostShare::Memory HostShare::theirs(int local_rank, Lies lies,
                                    const core::SharedAddress& address) const {
  if (lies == Lies::Nowhere) return {};
  return {parts_.group->map(local_rank, address), lies};
}

std::byte* HostShare::find(const Memory& memory, int64_t chunk, int64_t begin) const {
  if (memory.lies == Lies::Nowhere) return nullptr;
  return memory.place + (memory.lies == Lies::InWindow ? offset_in_window(chunk) : begin);
}

// Twice as many chunks as all lanes have under way: half are copied while the other half travel.
int64_t HostShare::window() const {
  return std::min(count(), int64_t{2} * layout().lanes * parts_.chunks->at_once());
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
  HostCells::Contribution& mine = parts_.cells->contribution(cell_, layout().local_rank);
  const auto publish_memory = [this](const std::byte* data, int64_t bytes,
                                     core::SharedAddress& address) {
    if (bytes == 0) return Lies::Nowhere;
    const auto place = parts_.group->locate(data, static_cast<size_t>(bytes));
    if (!place) return Lies::InWindow;
    address = *place;
    return Lies::InPlace;
  };
  const core::Batch& batch = *parts_.batch;
  input_lies_ = publish_memory(batch.input, parts_.chunks->input_bytes(), mine.input);
  output_lies_ = publish_memory(batch.output, parts_.chunks->output_bytes(), mine.output);
  if (stages()) {
    const auto bytes = static_cast<size_t>(window() * parts_.chunks->bytes_max());
    const auto place = parts_.group->locate(staging_.take(bytes), bytes);
    HORON_CHECK(place.has_value(), "scratch memory must be shareable");
    if (input_lies_ == Lies::InWindow) mine.input = *place;
    if (output_lies_ == Lies::InWindow) mine.output = *place;
  }
  mine.input_lies = input_lies_;
  mine.output_lies = output_lies_;
  publish(stages() ? 0 : count());
  return true;
}

void HostShare::publish(int64_t chunks) {
  std::atomic<uint64_t>& ready = parts_.cells->contribution(cell_, layout().local_rank).ready;
  ready.store(word(chunks), std::memory_order_seq_cst);
  parts_.cells->progress().wake_all();
}

bool HostShare::has_reached(const std::atomic<uint64_t>& word, int64_t chunks) const {
  const uint64_t seen = word.load(std::memory_order_seq_cst);
  return seen >> 32 == (use_ & kLow32) && (seen & kLow32) >= static_cast<uint64_t>(chunks);
}

bool HostShare::is_ready(int64_t chunk) const {
  if (alone()) return true;
  for (int rank = 0; rank < layout().local_size; ++rank) {
    const bool own = rank == layout().local_rank;  // read where it lies, staged or not
    const HostCells::Contribution& theirs = parts_.cells->contribution(cell_, rank);
    if (!has_reached(theirs.ready, own ? 0 : chunk + 1)) return false;
  }
  return true;
}

bool HostShare::map_next_rank() {
  const int rank = static_cast<int>(input_of_.size());
  if (rank == layout().local_size) return false;
  if (rank == layout().local_rank) {
    input_of_.push_back(own(parts_.batch->input, parts_.chunks->input_bytes()));
    output_of_.push_back(own(parts_.batch->output, parts_.chunks->output_bytes()));
    return true;
  }
  const HostCells::Contribution& published = parts_.cells->contribution(cell_, rank);
  const Memory input = theirs(rank, published.input_lies, published.input);
  output_of_.push_back(theirs(rank, published.output_lies, published.output));
  input_of_.push_back(input);
  return true;
}

const std::vector<const std::byte*>& HostShare::inputs(int64_t chunk) {
  const ChunkPlace place = parts_.chunks->place(chunk);
  inputs_.assign(input_of_.size(), nullptr);
  for (size_t rank = 0; rank < input_of_.size(); ++rank) {
    if (!place.gives(static_cast<int>(rank))) continue;
    inputs_[rank] = find(input_of_[rank], chunk, place.input_begin);
  }
  return inputs_;
}

const std::vector<std::byte*>& HostShare::outputs(int64_t chunk) {
  const ChunkPlace place = parts_.chunks->place(chunk);
  outputs_.assign(output_of_.size(), nullptr);
  for (size_t rank = 0; rank < output_of_.size(); ++rank) {
    if (!place.takes(static_cast<int>(rank))) continue;
    outputs_[rank] = find(output_of_[rank], chunk, place.output_begin);
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
  const bool last = chunks_of_lane == layout().of_lane(count(), lane);
  parts_.cells->progress().wake_if([&](int rank) {
    const HostCells::Contribution& theirs = parts_.cells->contribution(cell_, rank);
    return last || theirs.input_lies == Lies::InWindow || theirs.output_lies == Lies::InWindow;
  });
}

bool HostShare::is_over(int64_t chunk) const {
  const int lane = static_cast<int>(chunk % layout().lanes);
  return has_reached(parts_.cells->over(cell_, lane), chunk / layout().lanes + 1);
}

int64_t HostShare::copy() { return stages() ? copy_out() + copy_in() : 0; }

// Publishing rings all ranks that wait. So chunks of which nothing is copied are published together
// with the next one of which something is.
int64_t HostShare::copy_in() {
  const int64_t end = std::min(count(), copied_out_ + window());
  if (copied_in_ == end) return 0;
  int64_t copied = 0;
  while (copied_in_ < end && copied == 0) {
    const int64_t chunk = copied_in_++;
    const ChunkPlace place = parts_.chunks->place(chunk);
    const bool copies = input_lies_ == Lies::InWindow && !is_own(chunk) && place.bytes > 0 &&
                        place.gives(layout().local_rank);
    if (!copies) continue;
    core::copy_bytes(in_window(chunk), parts_.batch->input + place.input_begin,
                     static_cast<size_t>(place.bytes));
    copied = place.bytes;
  }
  publish(copied_in_);
  return 1 + copied;
}

int64_t HostShare::copy_out() {
  if (copied_out_ == copied_in_ || !is_over(copied_out_)) return 0;
  const int64_t chunk = copied_out_++;
  const ChunkPlace place = parts_.chunks->place(chunk);
  const bool takes = output_lies_ == Lies::InWindow && !is_own(chunk) && place.bytes > 0 &&
                     place.takes(layout().local_rank);
  if (!takes) return 1;  // there may be no output
  std::byte* const to = parts_.batch->output + place.output_begin;
  const bool gives_alone = place.giver == layout().local_rank;
  // In place: the program may be reading what it gives.
  if (gives_alone && parts_.batch->input + place.input_begin == to) return 1;
  core::copy_bytes(to, in_window(chunk), static_cast<size_t>(place.bytes));
  return 1 + place.bytes;
}

bool HostShare::over() const {
  if (alone() || stages()) return copied_out_ == count();
  for (int lane = 0; lane < layout().lanes; ++lane) {
    const int64_t chunks = layout().of_lane(count(), lane);
    if (chunks == 0) continue;  // nobody says that they are over
    if (!has_reached(parts_.cells->over(cell_, lane), chunks)) return false;
  }
  return true;
}

void HostShare::announce() {
  if (!alone()) parts_.cells->progress().announce();
}

void HostShare::leave() {
  if (alone()) return;
  staging_.give_back();
  parts_.cells->left(cell_, layout().local_rank).store(use_, std::memory_order_seq_cst);
  parts_.cells->reuse().wake_all();
}

}  // namespace horon::ops

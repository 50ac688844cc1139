#include "horon/torch_bindings/data/stream_sampler.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/data/epoch_order.h"

namespace horon {
namespace torch_detail {

// Not local to this file, since DistributedStreamSampler::State has one.
struct StreamPlace {
  size_t epoch = 0;
  size_t start = 0;  // the record at which this layout over ranks began
  size_t replicas = 1;
  size_t drawn = 0;
};

}  // namespace torch_detail

namespace {

using core::concat;
using torch_detail::StreamPlace;

[[noreturn]] void refuse_stream(const std::string& why) {
  throw Error(ErrorCode::InvalidArgument, concat("stream sampler: ", why));
}

size_t read_place_number(torch::serialize::InputArchive& archive, const char* key) {
  c10::IValue value;
  if (!archive.try_read(key, value) || !value.isInt() || value.toInt() < 0) {
    refuse_stream(concat("the archive has no \"", key, "\""));
  }
  return static_cast<size_t>(value.toInt());
}

StreamPlace read_place(torch::serialize::InputArchive& archive) {
  StreamPlace place;
  place.epoch = read_place_number(archive, "stream_epoch");
  place.start = read_place_number(archive, "start");
  place.replicas = read_place_number(archive, "replicas");
  if (place.replicas == 0) refuse_stream("the archive was saved by 0 ranks");
  place.drawn = read_place_number(archive, "position");
  return place;
}

void write_place(torch::serialize::OutputArchive& archive, const StreamPlace& place) {
  const auto write = [&](const char* key, size_t number) {
    archive.write(key, c10::IValue(static_cast<int64_t>(number)));
  };
  write("stream_epoch", place.epoch);
  write("start", place.start);
  write("replicas", place.replicas);
  write("position", place.drawn);
}

}  // namespace

struct DistributedStreamSampler::State {
  mutable std::mutex mutex;
  StreamOptions options;
  size_t rank = 0;
  StreamPlace place;
  std::optional<size_t> chosen_epoch;
  bool touched = false;
  bool resuming = false;

  // Records that a rank reads from the start of `of` on; nothing: without end.
  std::optional<size_t> share(const StreamPlace& of, size_t of_rank) const {
    if (!options.records) return std::nullopt;
    const size_t rest = *options.records - std::min(*options.records, of.start);
    const size_t more = !options.drop_last && of_rank < rest % of.replicas ? 1 : 0;
    return rest / of.replicas + more;
  }

  // `ended`: all ranks had come to the end of the epoch. What they have passed over there is not
  // read by others.
  void resume(const StreamPlace& saved, bool ended) {
    const size_t replicas = place.replicas;
    place = saved;
    if (saved.replicas != replicas) {
      place.start = ended ? *options.records : saved.start + saved.drawn * saved.replicas;
      place.drawn = 0;
      place.replicas = replicas;
    }
    touched = false;
    resuming = true;
  }
};

DistributedStreamSampler::DistributedStreamSampler(const StreamOptions& options)
    : state_(std::make_shared<State>()) {
  State& s = *state_;
  s.options = options;
  const torch_detail::Shard shard =
      torch_detail::shard_of(options.num_replicas, options.rank, options.process_set);
  if (!shard.fault.empty()) refuse_stream(shard.fault);
  s.place.replicas = shard.ranks;
  s.rank = shard.rank;
}

void DistributedStreamSampler::set_epoch(size_t epoch) {
  const std::lock_guard lock(state_->mutex);
  state_->chosen_epoch = epoch;
  if (epoch != state_->place.epoch) state_->resuming = false;
}

size_t DistributedStreamSampler::epoch() const {
  const std::lock_guard lock(state_->mutex);
  return state_->place.epoch;
}

void DistributedStreamSampler::reset(std::optional<size_t> new_size) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (s.resuming && new_size && new_size != s.options.records) {
    refuse_stream(concat("reset() with ", *new_size, " records can't continue from the loaded ",
                         "position; call set_epoch() with another epoch first to drop it"));
  }
  const std::optional<size_t> chosen = std::exchange(s.chosen_epoch, std::nullopt);
  if (s.resuming) return;
  if (new_size) s.options.records = new_size;
  s.place.epoch = chosen.value_or(s.touched ? s.place.epoch + 1 : s.place.epoch);
  s.place.start = 0;
  s.place.drawn = 0;
  s.touched = false;
}

std::optional<StreamBatch> DistributedStreamSampler::next(size_t batch_size) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  s.touched = true;
  s.resuming = false;
  size_t count = batch_size;
  if (const std::optional<size_t> share = s.share(s.place, s.rank)) {
    count = std::min(count, *share - std::min(*share, s.place.drawn));
  }
  if (count == 0) return std::nullopt;
  const size_t first = s.place.start + s.place.drawn * s.place.replicas + s.rank;
  s.place.drawn += count;
  return StreamBatch(first, s.place.replicas, count);
}

SamplerPosition DistributedStreamSampler::position() const {
  const std::lock_guard lock(state_->mutex);
  return {state_->place.epoch, state_->place.drawn};
}

void DistributedStreamSampler::put_back(const SamplerPosition& position) {
  const std::lock_guard lock(state_->mutex);
  State& s = *state_;
  if (position.epoch != s.place.epoch) return;
  s.place.drawn = position.drawn;
  s.resuming = s.chosen_epoch.value_or(s.place.epoch) == s.place.epoch;
}

void DistributedStreamSampler::save(torch::serialize::OutputArchive& archive) const {
  save_at(archive, position());
}

void DistributedStreamSampler::save_at(torch::serialize::OutputArchive& archive,
                                       const SamplerPosition& position) const {
  const std::lock_guard lock(state_->mutex);
  StreamPlace place = state_->place;
  if (position.epoch != place.epoch) refuse_stream("a position of another epoch can't be saved");
  place.drawn = position.drawn;
  write_place(archive, place);
}

void DistributedStreamSampler::load(torch::serialize::InputArchive& archive) {
  const std::lock_guard lock(state_->mutex);
  const StreamPlace place = read_place(archive);
  const bool all_alike = state_->options.drop_last;
  state_->resume(place, all_alike && place.drawn > 0 && state_->share(place, 0) == place.drawn);
}

void DistributedStreamSampler::load_resharded(std::vector<torch::serialize::InputArchive>& ranks) {
  const std::lock_guard lock(state_->mutex);
  if (ranks.empty()) refuse_stream("there is nothing to load");
  std::vector<StreamPlace> places;
  for (torch::serialize::InputArchive& archive : ranks) places.push_back(read_place(archive));
  const StreamPlace& first = places.front();
  bool ended = first.drawn > 0;
  for (size_t r = 0; r < places.size(); ++r) {
    ended = ended && state_->share(places[r], r) == places[r].drawn;
  }
  for (size_t r = 0; r < places.size(); ++r) {
    const StreamPlace& place = places[r];
    if (place.replicas != ranks.size()) {
      refuse_stream(concat("it was saved by ", place.replicas,
                           " ranks and needs the archives of all, but got ", ranks.size()));
    }
    if (place.epoch != first.epoch || place.start != first.start ||
        (place.drawn != first.drawn && !ended)) {
      refuse_stream(concat("rank 0 had read ", first.drawn, " records of epoch ", first.epoch,
                           ", rank ", r, " ", place.drawn, " of epoch ", place.epoch,
                           "; a stream can continue only if all ranks were at the same position"));
    }
  }
  state_->resume(first, ended);
}

}  // namespace horon

#include "horon/torch_bindings/data/epoch_order.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::torch_detail {
namespace {

// SplitMix64 (Steele, Lea and Flood 2014, "Fast Splittable Pseudorandom Number Generators"): the
// same numbers on every machine, which the distributions of the standard library do not promise.
class SplitMix {
 public:
  SplitMix(uint64_t seed, uint64_t epoch) : state_(seed) { state_ = next() ^ epoch; }

  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // Even over 0 .. bound-1: numbers of the incomplete last stretch of multiples are drawn again.
  uint64_t below(uint64_t bound) {
    const uint64_t skip = (0 - bound) % bound;
    for (;;) {
      const uint64_t number = next();
      if (number >= skip) return number % bound;
    }
  }

 private:
  uint64_t state_;
};

// Stands for an epoch in the permutation of turns, in which samples are left out: no epoch has this
// number.
constexpr uint64_t kTurns = ~uint64_t{0};

std::vector<size_t> numbers(size_t count) {
  std::vector<size_t> order(count);
  std::iota(order.begin(), order.end(), size_t{0});
  return order;
}

// Fisher and Yates.
std::vector<size_t> permutation(size_t count, uint64_t seed, uint64_t epoch) {
  std::vector<size_t> order = numbers(count);
  SplitMix generator(seed, epoch);
  for (size_t i = count; i > 1; --i) std::swap(order[i - 1], order[generator.below(i)]);
  return order;
}

// For each rank, how many of `count` places it draws.
std::vector<size_t> interleaved_shares(size_t count, size_t ranks, Tail tail, size_t batch) {
  std::vector<size_t> shares(ranks, 0);
  if (count == 0) return shares;
  for (size_t r = 0; r < ranks; ++r) {
    if (tail == Tail::Repeat) shares[r] = (count + ranks - 1) / ranks;
    if (tail == Tail::Drop) shares[r] = count / (ranks * batch) * batch;
    if (tail == Tail::Uneven) shares[r] = count / ranks + (r < count % ranks ? 1 : 0);
  }
  return shares;
}

}  // namespace

Places InterleavedDeal::deal(const std::vector<size_t>& order, size_t ranks) const {
  const std::vector<size_t> shares = interleaved_shares(order.size(), ranks, tail_, batch_);
  Places places(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    places[r].resize(shares[r]);
    for (size_t i = 0; i < shares[r]; ++i) places[r][i] = (i * ranks + r) % order.size();
  }
  return places;
}

Places InterleavedDeal::replay(const std::vector<size_t>& order, const Stage& stage) const {
  return InterleavedDeal(tail_, std::max<size_t>(stage.batch, 1)).deal(order, stage.drawn.size());
}

Places BlockDeal::deal(const std::vector<size_t>& order, size_t ranks) const {
  const size_t count = order.size();
  // The block of rank r begins at floor(r * count / ranks), without overflow.
  const auto begin = [&](size_t r) { return count / ranks * r + count % ranks * r / ranks; };
  Places places(ranks);
  for (size_t r = 0; r < ranks; ++r) {
    places[r].resize(begin(r + 1) - begin(r));
    std::iota(places[r].begin(), places[r].end(), begin(r));
  }
  return places;
}

namespace {

// What each rank gets in one step, and the sum of its costs.
struct Shares {
  explicit Shares(size_t ranks) : places(ranks), sums(ranks, 0.0) {}
  void give(size_t rank, size_t place, double cost) {
    places[rank].push_back(place);
    sums[rank] += cost;
  }
  double difference() const {
    const auto [least, most] = std::minmax_element(sums.begin(), sums.end());
    return *most - *least;
  }
  Places places;
  std::vector<double> sums;
};

// `step`: places sorted by cost, the most expensive one last. In each round every rank gets one
// sample. `poorest`: the ranks, those with the smallest sums so far first.
template <class Cost>
Shares deal_in_rounds(const std::vector<size_t>& step, size_t ranks, const Cost& cost) {
  Shares shares(ranks);
  std::vector<size_t> poorest = numbers(ranks);
  for (size_t done = 0; done < step.size(); done += ranks) {
    std::stable_sort(poorest.begin(), poorest.end(),
                     [&](size_t a, size_t b) { return shares.sums[a] < shares.sums[b]; });
    for (size_t i = 0; i < std::min(ranks, step.size() - done); ++i) {
      const size_t place = step[step.size() - 1 - done - i];
      shares.give(poorest[i], place, cost(place));
    }
  }
  return shares;
}

// Each sample, the most expensive first, goes to the rank with the smallest sum of those that have
// room for one: so a rank with one very expensive sample gets the cheapest of the others.
template <class Cost>
Shares deal_to_poorest(const std::vector<size_t>& step, size_t ranks, const Cost& cost) {
  Shares shares(ranks);
  const size_t each = (step.size() + ranks - 1) / ranks;
  for (size_t i = step.size(); i > 0; --i) {
    size_t poorest = ranks;
    for (size_t r = 0; r < ranks; ++r) {
      if (shares.places[r].size() == each) continue;
      if (poorest == ranks || shares.sums[r] < shares.sums[poorest]) poorest = r;
    }
    shares.give(poorest, step[i - 1], cost(step[i - 1]));
  }
  return shares;
}

}  // namespace

void BalancedDeal::deal_step(const std::vector<size_t>& order, const std::vector<size_t>& step,
                             Places& places) const {
  const size_t ranks = places.size();
  const auto cost = [&](size_t place) { return costs_[order[place]]; };
  Shares best = deal_in_rounds(step, ranks, cost);
  if (step.size() % ranks == 0) {
    Shares other = deal_to_poorest(step, ranks, cost);
    if (other.difference() < best.difference()) best = std::move(other);
  }
  for (size_t r = 0; r < ranks; ++r) {
    places[r].insert(places[r].end(), best.places[r].begin(), best.places[r].end());
  }
}

Places BalancedDeal::deal(const std::vector<size_t>& order, size_t ranks) const {
  const size_t step = ranks * batch_;
  size_t count = order.size();
  if (tail_ == Tail::Drop) count = count / step * step;
  if (tail_ == Tail::Repeat && count > 0) count = (count + ranks - 1) / ranks * ranks;
  Places places(ranks);
  for (size_t first = 0; first < count; first += step * pool_) {
    std::vector<size_t> pool(std::min(step * pool_, count - first));
    for (size_t i = 0; i < pool.size(); ++i) pool[i] = (first + i) % order.size();
    std::stable_sort(pool.begin(), pool.end(),
                     [&](size_t a, size_t b) { return costs_[order[a]] < costs_[order[b]]; });
    std::vector<std::vector<size_t>> steps;
    for (size_t i = 0; i < pool.size(); i += step) {
      steps.emplace_back(
          pool.begin() + static_cast<std::ptrdiff_t>(i),
          pool.begin() + static_cast<std::ptrdiff_t>(std::min(i + step, pool.size())));
    }
    // Steps sorted by cost would undo the shuffling. So the step that holds the first sample of the
    // pool comes first, and so on; an incomplete step stays the last.
    const size_t complete = pool.size() / step;
    std::sort(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(complete),
              [](const auto& a, const auto& b) {
                return *std::min_element(a.begin(), a.end()) <
                       *std::min_element(b.begin(), b.end());
              });
    for (const std::vector<size_t>& one : steps) deal_step(order, one, places);
  }
  return places;
}

Places BalancedDeal::replay(const std::vector<size_t>& order, const Stage& stage) const {
  return BalancedDeal(costs_, tail_, stage.batch, pool_).deal(order, stage.drawn.size());
}

uint64_t BalancedDeal::rules() const {
  std::string bytes(reinterpret_cast<const char*>(costs_.data()), costs_.size() * sizeof(double));
  return core::hash_of(core::concat(bytes, static_cast<int>(tail_), " ", pool_)) | 4;
}

std::vector<size_t> epoch_order(const EpochOptions& options) {
  const size_t count = options.samples, left_out = options.left_out;
  std::vector<size_t> order =
      options.shuffle ? permutation(count, options.seed, options.epoch) : numbers(count);
  if (left_out == 0) return order;
  // `turns` has all samples in an order that is the same in all epochs. Each epoch leaves out the
  // next ones of it, and after its end the first ones again. Without shuffling it is reversed, so
  // that the first epoch leaves out the last samples.
  std::vector<size_t> turns = numbers(count);
  std::reverse(turns.begin(), turns.end());
  if (options.shuffle) turns = permutation(count, options.seed, kTurns);
  std::vector<bool> out(count, false);
  for (size_t i = 0; i < left_out; ++i) {
    out[turns[(options.epoch % count * left_out + i) % count]] = true;
  }
  std::stable_partition(order.begin(), order.end(), [&](size_t sample) { return !out[sample]; });
  return order;
}

Shard shard_of(std::optional<size_t> ranks, std::optional<size_t> rank, const ProcessSet& set) {
  Shard shard;
  if (!set.is_world() && (ranks || rank)) {
    shard.fault = "num_replicas and rank come from process_set; leave them out";
    return shard;
  }
  shard.ranks = ranks ? *ranks : static_cast<size_t>(set.size());
  shard.rank = rank ? *rank : static_cast<size_t>(set.rank());
  if (shard.ranks == 0) {
    shard.fault = "num_replicas can't be 0";
  } else if (shard.rank == static_cast<size_t>(-1)) {  // as ProcessSet::rank() tells it
    shard.fault =
        "this rank is not in the process set (its rank there is -1); make the sampler only on "
        "ranks of the set";
  } else if (shard.rank >= shard.ranks) {
    shard.fault = core::concat("rank is ", shard.rank, ", but num_replicas is ", shard.ranks,
                               "; give a rank below that");
  }
  return shard;
}

std::vector<size_t> samples_of_rank(const EpochOptions& options, const Deal& deal,
                                    const std::vector<Stage>& stages, size_t ranks, size_t rank) {
  std::vector<size_t> order = epoch_order(options);
  for (const Stage& stage : stages) {
    const Places places = deal.replay(order, stage);
    std::vector<bool> drawn(order.size(), false);
    bool has_begun = false, has_ended = true;
    for (size_t r = 0; r < places.size(); ++r) {
      for (size_t i = 0; i < std::min(stage.drawn[r], places[r].size()); ++i) {
        drawn[places[r][i]] = true;
      }
      has_begun = has_begun || stage.drawn[r] > 0;
      has_ended = has_ended && stage.drawn[r] >= places[r].size();
    }
    std::vector<size_t> rest;
    // If the epoch has ended, what Tail::Drop has left out is not dealt out by a later job.
    for (size_t place = 0; place < order.size() && !(has_begun && has_ended); ++place) {
      if (!drawn[place]) rest.push_back(order[place]);
    }
    order = std::move(rest);
  }
  std::vector<size_t> mine = deal.deal(order, ranks)[rank];
  for (size_t& place : mine) place = order[place];
  return mine;
}

}  // namespace horon::torch_detail

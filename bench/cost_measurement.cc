#include "horon/bench/cost_measurement.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <utility>

#include "horon/bench/statistics.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace horon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kBuckets = 4;
constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
constexpr int kWarmUps = 3;  // a repeated call is frozen by then
constexpr int kRepetitions = 7;
// The share of a cable's rate that is left for data; the rest are headers of Ethernet, IP and TCP.
constexpr double kPayload = 0.949;

double us_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

// Some arithmetic that the compiler can't leave out.
void compute(int64_t rounds) {
  double value = 1;
  for (int64_t round = 0; round < rounds; ++round) value = std::sqrt(value + 1.5);
  const volatile double result = value;
  (void)result;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

CostMeasurement::CostMeasurement(core::Runtime& runtime, MpiPeer& mpi, int64_t bucket_bytes,
                                 Compression compression)
    : runtime_(runtime), mpi_(mpi), bucket_bytes_(bucket_bytes), compression_(compression) {}

// Buckets with the same number share one buffer: no two of them are in flight at the same time.
std::shared_ptr<core::HandleState> CostMeasurement::submit_one(int bucket, int64_t bytes) {
  core::EntrySpec spec;
  spec.kind = CollectiveKind::Allreduce;
  spec.dtype = DataType::Float32;
  spec.compression = compression_;
  const int64_t count = bytes / kFloat;
  spec.parts = {{"", {count}}};
  core::Submission submission;
  submission.name = core::concat("predict.", bytes, ".", bucket);
  submission.spec = std::make_shared<const core::EntrySpec>(std::move(spec));
  std::shared_ptr<std::byte>& memory = memory_[bucket];
  if (memory == nullptr) memory = ops::allocate_host(static_cast<size_t>(bucket_bytes_));
  submission.memory = {{memory.get(), memory.get(), count}};
  submission.keep_alive = memory;
  return runtime_.submit(std::move(submission));
}

CostMeasurement::Handles CostMeasurement::submit(int64_t bytes, int buckets) {
  Handles handles;
  for (int bucket = 0; bucket < buckets; ++bucket) handles.push_back(submit_one(bucket, bytes));
  return handles;
}

// Microseconds of the slowest rank.
double CostMeasurement::time_us(int64_t bytes, int buckets) {
  mpi_.barrier();
  const auto begin = Clock::now();
  for (const auto& handle : submit(bytes, buckets)) (void)handle->get();
  return mpi_.max({us_since(begin)}).front();
}

double CostMeasurement::median_us(int64_t bytes, int buckets) {
  std::vector<double> times;
  for (int i = -kWarmUps; i < kRepetitions; ++i) {
    const double us = time_us(bytes, buckets);
    if (i >= 0) times.push_back(us);
  }
  return median(times);
}

double CostMeasurement::rounds_for(double us) {
  constexpr int64_t kTrialRounds = 2'000'000;
  std::vector<double> trials;
  for (int i = 0; i < kWarmUps; ++i) {
    mpi_.barrier();
    const auto begin = Clock::now();
    compute(kTrialRounds);
    trials.push_back(mean(mpi_.gather(us_since(begin))));
  }
  return mpi_.max({us / median(trials)}).front() * kTrialRounds;
}

// Returns how much longer a computation takes for each byte that is reduced beside it. The
// computation outlasts the reduction of all buckets; it runs alone and beside that reduction, in
// turns.
double CostMeasurement::compute_us_per_byte(double reduce_us) {
  const auto run = [&](int64_t rounds) {
    mpi_.barrier();
    const auto begin = Clock::now();
    compute(rounds);
    return us_since(begin);
  };
  const double rounds = rounds_for(std::max(1.5 * reduce_us, 20e3));
  std::vector<double> longer;
  for (int i = 0; i < kRepetitions; ++i) {
    const double alone_us = run(static_cast<int64_t>(rounds));
    mpi_.barrier();
    const auto begin = Clock::now();
    const Handles handles = submit(bucket_bytes_, kBuckets);
    compute(static_cast<int64_t>(rounds));
    const double beside_us = us_since(begin);
    for (const auto& handle : handles) (void)handle->get();
    longer.push_back(mean(mpi_.gather(beside_us - alone_us)));
  }
  return std::max(0.0, median(longer)) / static_cast<double>(kBuckets * bucket_bytes_);
}

AllreduceCost CostMeasurement::measure() {
  std::vector<Sample> samples;
  for (const int64_t bytes : {bucket_bytes_ / 64, bucket_bytes_ / 4}) {
    samples.push_back({static_cast<double>(bytes), median_us(bytes, 1)});
  }
  double all_us = 0;
  for (const int buckets : {1, kBuckets}) {
    all_us = median_us(bucket_bytes_, buckets);
    samples.push_back({static_cast<double>(buckets * bucket_bytes_), all_us});
  }
  AllreduceCost cost = fit_cost(samples);
  cost.compute_us_per_byte = compute_us_per_byte(all_us);
  return cost;
}

CostMeasurement::Rehearsal CostMeasurement::rehearse(const TrainedModel& model,
                                                     const Buckets& buckets) {
  const std::vector<FullBucket> full = full_buckets(model.stages, buckets);
  const double rounds = rounds_for(model.alone_ms * 1e3);
  const double backward = 1 - model.forward_share - model.optimizer_share;
  const auto part = [&](double share) { compute(static_cast<int64_t>(share * rounds)); };
  const auto step_ms = [&](bool reduces) {
    Handles handles;
    mpi_.barrier();
    const auto begin = Clock::now();
    part(model.forward_share);
    double made = 0;
    for (size_t bucket = 0; bucket < full.size(); ++bucket) {
      part(backward * (full[bucket].share - made));
      made = full[bucket].share;
      const auto bytes = static_cast<int64_t>(full[bucket].bytes) / kFloat * kFloat;
      if (reduces) handles.push_back(submit_one(static_cast<int>(bucket), bytes));
    }
    for (const auto& handle : handles) (void)handle->get();
    part(model.optimizer_share);
    return mpi_.max({us_since(begin) / 1e3}).front();
  };
  std::vector<double> alone;
  std::vector<double> together;
  for (int i = -kWarmUps; i < kRepetitions; ++i) {
    const double without = step_ms(false);
    const double with = step_ms(true);
    if (i < 0) continue;
    alone.push_back(without);
    together.push_back(with);
  }
  return {median(alone), median(together)};
}

AllreduceCost cost_of_network(const PredictOptions& given, int64_t bucket_bytes,
                              double compute_us_per_byte, ops::WireType allowed) {
  ops::MachineConstants constants;
  constants.wire_bytes_per_us = given.gbit * 125 * kPayload;
  constants.message_us = std::max(constants.message_us, given.delay_us);
  return cost_between_hosts(given.hosts, bucket_bytes, constants, compute_us_per_byte, allowed);
}

std::string prediction_text(const std::string& where, const AllreduceCost& cost,
                            const StepPrediction& prediction) {
  char text[512] = {};
  (void)std::snprintf(
      text, sizeof text,
      "# %s: an allreduce takes %.0f us and 1 us for each %.0f bytes;\n"
      "#   a computation beside it takes %.3g us longer for each MB\n"
      "step %.2f ms: computation %.2f ms, not hidden %.2f ms of %.2f ms in %d buckets\n",
      where.c_str(), cost.latency_us, cost.bytes_per_us, cost.compute_us_per_byte * 1e6,
      prediction.step_ms, prediction.compute_ms, prediction.exposed_ms, prediction.communication_ms,
      prediction.buckets);
  return text;
}

}  // namespace horon::bench

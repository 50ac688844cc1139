// Measures in a running job what step_model.h predicts from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"
#include "horon/bench/step_model.h"
#include "horon/core/runtime/handle.h"
#include "horon/core/runtime/runtime.h"

namespace horon::bench {

// Buckets of float32 are reduced as a training step does it: several are submitted and then waited
// for, once with nothing else to do and once beside a computation.
class CostMeasurement {
 public:
  // `runtime` and `mpi` must outlive the object. `bucket_bytes` is the size of the longest bucket.
  // The buckets travel in `compression`.
  CostMeasurement(core::Runtime& runtime, MpiPeer& mpi, int64_t bucket_bytes,
                  Compression compression);

  // Collective over all ranks; returns the same on all of them. Takes seconds.
  AllreduceCost measure();

  // Times a step in which arithmetic stands for the model: it fills the buckets when the model
  // would. Steps without the reductions and with them take turns. The figures are milliseconds of
  // the slowest rank. Collective over all ranks; returns the same on all of them.
  struct Rehearsal {
    double alone_ms = 0;
    double step_ms = 0;
  };
  Rehearsal rehearse(const TrainedModel& model, const Buckets& buckets);

 private:
  using Handles = std::vector<std::shared_ptr<core::HandleState>>;
  std::shared_ptr<core::HandleState> submit_one(int bucket, int64_t bytes);
  Handles submit(int64_t bytes, int buckets);
  double median_us(int64_t bytes, int buckets);
  double time_us(int64_t bytes, int buckets);
  double compute_us_per_byte(double reduce_us);
  // How often the arithmetic is repeated to take `us` microseconds; the same on all ranks.
  double rounds_for(double us);

  core::Runtime& runtime_;
  MpiPeer& mpi_;
  const int64_t bucket_bytes_;
  const Compression compression_;
  std::map<int, std::shared_ptr<std::byte>> memory_;  // [bucket]
};

// The cost on the network that `given` describes. `allowed`: see cost_between_hosts().
AllreduceCost cost_of_network(const PredictOptions& given, int64_t bucket_bytes,
                              double compute_us_per_byte, ops::WireType allowed);

std::string prediction_text(const std::string& where, const AllreduceCost& cost,
                            const StepPrediction& prediction);

}  // namespace horon::bench

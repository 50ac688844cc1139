// A model of the time that a training step takes: pure functions of what an allreduce costs, and of
// what a model computes and reduces. horon-bench --predict measures the former and prints what
// comes of both.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "horon/core/base/dtype.h"
#include "horon/ops/choice/machine_constants.h"
#include "horon/ops/hierarchical/wire_type.h"

namespace horon::bench {

// For one rank, while all ranks of the job are at work.
struct AllreduceCost {
  double latency_us = 0;           // until the first bytes are reduced
  double bytes_per_us = 1e9;       // from then on
  double compute_us_per_byte = 0;  // how much longer a computation beside it takes
};

struct Sample {
  double bytes = 0;
  double us = 0;
};
// Latency and rate of time = latency + bytes / rate, by least squares of relative errors: small
// messages count as much as large ones. Neither is negative. Needs samples of two sizes.
AllreduceCost fit_cost(const std::vector<Sample>& samples);

// The cost between hosts with one rank each. It is not measured, but computed for the algorithms
// that Horon takes on the given network, for buckets of `bytes` of float32. `allowed`: as in
// ops::choose_wire_type().
AllreduceCost cost_between_hosts(int hosts, int64_t bytes, const ops::MachineConstants& constants,
                                 double compute_us_per_byte,
                                 ops::WireType allowed = DataType::Float32);

// Gradients in the order in which backward makes them.
struct GradientStage {
  double bytes = 0;
  double share = 1;  // of the time of backward
};

struct TrainedModel {
  std::vector<GradientStage> stages;
  double alone_ms = 0;             // a step without communication
  double forward_share = 1.0 / 3;  // of alone_ms; the rest, without the optimizer, is backward
  double optimizer_share = 0.05;
};
// "33.5M:0.3,8.4M:0.3,2.8M:0.4" (bytes: share of backward) or "44.7M". K, M, G are powers of 1000.
// Shares are made to add up to 1. Throws Error(Config).
std::vector<GradientStage> stages_in(const std::string& text);

struct Buckets {
  double first_bytes = 0;
  double bytes = 0;
};

// A bucket's bytes, and the share of backward after which it is full.
struct FullBucket {
  double bytes = 0;
  double share = 0;
};
std::vector<FullBucket> full_buckets(const std::vector<GradientStage>& stages,
                                     const Buckets& buckets);

struct StepPrediction {
  double step_ms = 0;
  double compute_ms = 0;        // including what communication adds to it
  double communication_ms = 0;  // of all buckets, if nothing else ran
  double exposed_ms = 0;        // that backward does not hide
  int buckets = 0;
};
StepPrediction predict_step(const TrainedModel& model, const AllreduceCost& cost,
                            const Buckets& buckets);

}  // namespace horon::bench

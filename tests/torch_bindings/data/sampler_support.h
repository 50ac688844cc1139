// What tests of samplers share.
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <torch/data/samplers/base.h>

#include "horon/tests/torch_bindings/archives.h"
#include "horon/torch_bindings/data/samplers.h"

namespace horon::testing_support {

// All that the sampler draws until its epoch ends.
inline std::vector<size_t> drain(torch::data::samplers::Sampler<>& sampler, size_t batch = 7) {
  std::vector<size_t> all;
  while (auto indices = sampler.next(batch)) {
    EXPECT_LE(indices->size(), batch);
    all.insert(all.end(), indices->begin(), indices->end());
  }
  return all;
}

// The samples that each rank of a job draws in the current epoch: `steps` batches each, or all.
using Ranks = std::vector<std::unique_ptr<ShardedSampler>>;
using MakeSampler = std::function<std::unique_ptr<ShardedSampler>(SamplerOptions)>;

inline Ranks make_ranks(const MakeSampler& make, size_t ranks, SamplerOptions options) {
  Ranks job;
  for (size_t r = 0; r < ranks; ++r) {
    options.num_replicas = ranks;
    options.rank = r;
    job.push_back(make(options));
  }
  return job;
}

inline void draw(Ranks& job, size_t steps, std::vector<size_t>& into, size_t batch = 3) {
  for (size_t step = 0; step < steps; ++step) {
    for (auto& sampler : job) {
      const auto indices = sampler->next(batch);
      if (indices) into.insert(into.end(), indices->begin(), indices->end());
    }
  }
}

// All ranks of `to` go on where all of `from` have stopped.
inline void go_on(const Ranks& from, Ranks& to) {
  for (auto& sampler : to) {
    std::vector<torch::serialize::InputArchive> parts;
    for (const auto& old : from) {
      parts.push_back(saved(*old));
    }
    sampler->load_resharded(parts);
    sampler->reset();
  }
}

constexpr size_t kAll = 1000;  // steps

}  // namespace horon::testing_support

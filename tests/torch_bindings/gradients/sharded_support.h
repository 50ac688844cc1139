// Optimizers whose state is shared out over the ranks, beside those that have all of it.
#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/tests/torch_bindings/gradients/training_support.h"

namespace horon::testing_support {

inline DistributedOptimizerOptions sharded(DistributedOptimizerOptions options = {}) {
  options.bucket_bytes = 2000;
  options.first_bucket_bytes = 100;
  options.shard_optimizer_state = true;
  return options;
}

inline DistributedOptimizerOptions whole() {
  DistributedOptimizerOptions options = sharded();
  options.shard_optimizer_state = false;
  return options;
}

inline std::vector<int> ranks_of_state(const torch_detail::ShardedState& optimizer) {
  return optimizer.ranks_of_state();
}

template <class Optimizer>
void train_steps(Net& net, Optimizer& optimizer, int begin, int end,
                 at::ScalarType dtype = at::kFloat) {
  for (int step = begin; step < end; ++step) {
    optimizer.zero_grad();
    loss_of(net, shard_of(batch_of(step, dtype))).backward();
    optimizer.step();
  }
}

inline void expect_same_bits(Net& net, Net& expected) {
  const auto parameters = expected->named_parameters();
  for (const auto& item : net->named_parameters()) {
    EXPECT_TRUE(item.value().equal(parameters[item.key()])) << item.key();
  }
}

inline std::string archive_of(const ::torch::optim::Optimizer& optimizer) {
  ::torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  return std::move(stream).str();
}

inline void load_from(::torch::optim::Optimizer& optimizer, const std::string& bytes) {
  std::istringstream stream(bytes);
  ::torch::serialize::InputArchive archive;
  archive.load_from(stream);
  optimizer.load(archive);
}

inline int64_t sum_over_ranks(int64_t value) {
  return allreduce(at::scalar_tensor(value, at::kLong), {.op = ReduceOp::Sum}).item<int64_t>();
}

}  // namespace horon::testing_support

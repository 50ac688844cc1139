// What tests of samplers share.
#pragma once

#include <sstream>
#include <vector>

#include <gtest/gtest.h>
#include <torch/data/samplers/base.h>
#include <torch/serialize/archive.h>

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

// What `thing` saves, to be loaded.
template <class Thing>
torch::serialize::InputArchive saved(const Thing& thing) {
  std::stringstream stream;
  torch::serialize::OutputArchive out;
  thing.save(out);
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  return in;
}

template <class From, class To>
void hand_over(const From& from, To& to) {
  torch::serialize::InputArchive in = saved(from);
  to.load(in);
}

}  // namespace horon::testing_support

// For tests of what is saved and loaded.
#pragma once

#include <sstream>

#include <torch/serialize/archive.h>

namespace horon::testing_support {

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

// A blocking collective of the running session, without LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "horon/ops/session/running_job.h"

namespace horon::test {

// The sum of the members' `values`, element by element. Throws what the collective fails with.
inline std::vector<float> blocking_sum(const std::string& name, std::vector<float> values,
                                       uint32_t set = 0) {
  const auto data = std::make_shared<std::vector<float>>(std::move(values));
  const auto elements = static_cast<int64_t>(data->size());
  auto spec = std::make_shared<core::EntrySpec>();
  spec->parts = {{name, {elements}}};
  auto* const bytes = reinterpret_cast<std::byte*>(data->data());
  core::Submission submission;
  submission.set = set;
  submission.name = name;
  submission.spec = std::move(spec);
  submission.memory = {{bytes, bytes, elements}};
  submission.keep_alive = data;
  (void)ops::runtime().run(std::move(submission))->get();
  return *data;
}

}  // namespace horon::test

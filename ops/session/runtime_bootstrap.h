// The bootstrap of a job that runs: what ranks tell each other while they make something new
// together, such as a process set.
//
// It sends by collectives of the world. So a rank that does not come is reported as a stall, and a
// rank that dies ends the job with an error that names it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "horon/core/bootstrap/bootstrap.h"
#include "horon/core/runtime/runtime.h"

namespace horon::ops {

class RuntimeBootstrap final : public core::Bootstrap {
 public:
  // `name`: of the collectives, for messages; no other call uses it at the same time. The runtime
  // must outlive this.
  RuntimeBootstrap(core::Runtime& runtime, std::string name);

  const core::Topology& topology() const override { return runtime_.topology(); }
  // Always collective over the whole job, also Among::Host: then the ranks of other hosts are left
  // out of the answer.
  std::vector<std::string> allgather(Among among, std::string_view mine) const override;

 private:
  core::Runtime& runtime_;
  const std::string name_;
};

}  // namespace horon::ops

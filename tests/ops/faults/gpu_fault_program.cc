// A rank that goes wrong in the middle of collectives on GPUs: see tests/support/fault_job.h. On
// the CUDA and the NCCL of the host.
#include <memory>
#include <vector>

#include "horon/core/execution/chunk_plan.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/fault_job.h"
#include "horon/tests/support/host_gpu/host_gpu_libraries.h"

namespace {

constexpr int kSteps = 400;
constexpr int kStepOfFault = 20;
constexpr int64_t kGradientCount = 1 << 18;  // more chunks than are in flight at once

std::shared_ptr<horon::core::HandleState> start_allreduce(const horon::ProcessSet& set) {
  static const auto spec = [] {
    auto out = std::make_shared<horon::core::EntrySpec>();
    out->device = horon::DeviceKind::Cuda;
    out->parts = {{"gradient", {kGradientCount}}};
    out->piece_bytes = horon::core::ChunkPlan::kBytesLeast;  // several, where there are pieces
    return out;
  }();
  const auto data = std::make_shared<std::vector<float>>(kGradientCount, 1.0F);
  auto* const bytes = reinterpret_cast<std::byte*>(data->data());
  horon::core::Submission submission;
  submission.set = set.id();
  submission.name = "gradient";
  submission.spec = spec;
  submission.device_index = horon::ops::gpu()->device();
  submission.memory = {{bytes, bytes, kGradientCount}};
  submission.keep_alive = data;
  return horon::ops::runtime().submit(std::move(submission));
}

// In two sets, whose kernels are aborted together.
void work(const horon::testing_support::FaultJob& job) {
  const horon::ProcessSet set = horon::add_process_set({0, 1, 2});
  for (int step = 0; step < kSteps; ++step) {
    const auto in_world = start_allreduce({});
    const auto in_set = start_allreduce(set);
    if (job.is_guilty() && step == kStepOfFault) job.do_fault();
    (void)in_world->get();
    (void)in_set->get();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto libraries = horon::test::HostGpuLibraries::install({});
  horon::init_session();
  const horon::testing_support::FaultJob job(argc, argv);
  return job.run([&] { work(job); });
}

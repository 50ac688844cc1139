// HORON_GPU_COLLECTIVES=hierarchical: NCCL within hosts, messages between them. The launcher says
// which ranks take each other for ranks of one host.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <thread>

#include <gmock/gmock.h>

#include "horon/ops/cuda/cuda_event.h"
#include "horon/tests/ops/session/gpu_session_support.h"

namespace horon::gpu_session {
namespace {

class GpuHierarchy : public GpuSession {
 protected:
  // False, and skipped: there is one host.
  bool start_hierarchy(test::HostGpuLibraries::Options options = {},
                       std::map<std::string, std::string> knobs = {}) {
    knobs["HORON_GPU_COLLECTIVES"] = "hierarchical";
    start(std::move(options), knobs);
    return !ops::runtime().topology().one_host();
  }
  static bool is_chosen(const ProcessSet& set = {}) {
    const auto lines = ops::explain_selection(set, CollectiveKind::Allreduce, DeviceKind::Cuda);
    return std::count(lines.begin(), lines.end(), "nccl_hier_allreduce: chosen") > 0;
  }
};

TEST_F(GpuHierarchy, IsUsedBetweenHostsAlone) {
  const bool several = start_hierarchy();
  EXPECT_EQ(is_chosen(), several);
  const ProcessSet local = add_local_process_set();
  EXPECT_FALSE(is_chosen(local));
  const Floats in_world = floats(5000, mine());
  const Floats in_set = floats(5000, mine());
  const Handle first = allreduce({}, "world", in_world);
  const Handle second = allreduce(local, "set", in_set);
  (void)first->get();
  (void)second->get();
  EXPECT_THAT(*in_world, testing::Each(sum_of({})));
  EXPECT_THAT(*in_set, testing::Each(sum_of(local)));
}

// The ranks of a host without shared memory can't agree on what enters their devices.
TEST_F(GpuHierarchy, IsNotUsedWithoutSharedMemory) {
  (void)start_hierarchy({}, {{"HORON_SHARED_MEMORY", "0"}});
  const bool one_rank_each =
      ops::runtime().topology().host_count() == size() && !ops::runtime().topology().one_host();
  EXPECT_EQ(is_chosen(), one_rank_each);
  const Floats data = floats(5000, mine());
  (void)allreduce({}, "x", data)->get();
  EXPECT_THAT(*data, testing::Each(sum_of({})));
}

// A tensor that is late on one rank, since that rank wants the result of an earlier one first. The
// halves of the two allreduces meet on the device of the other rank of its host.
TEST_F(GpuHierarchy, ALateTensorHoldsUpNoEarlierResult) {
  test::HostGpuLibraries::Options options;
  options.nccl.fills_device = true;
  if (!start_hierarchy(options)) return;
  const auto cuda = ops::gpu()->cuda();
  ops::CudaQueue program(cuda);
  for (int round = 0; round < 10; ++round) {
    const Floats early = floats(20'000, mine());
    const Floats late = floats(20'000, mine());
    Submission first = submission_of(
        {}, "early", spec_of(CollectiveKind::Allreduce, early->size(), DeviceKind::Cuda), early);
    if (rank() == size() - 1) {  // on the other host: the exchange is late
      write_late(program, std::chrono::milliseconds(5));
      first.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
    }
    const Handle of_early = ops::runtime().submit(std::move(first));
    const auto has_early = std::make_shared<std::atomic<bool>>(rank() != 1);
    device().enqueue(program.stream(), [has_early] { return has_early->load(); });
    auto spec = spec_of(CollectiveKind::Allreduce, late->size(), DeviceKind::Cuda);
    spec->reduce_op = ReduceOp::Max;  // never fused with the first
    Submission second = submission_of({}, "late", spec, late);
    second.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
    const Handle of_late = ops::runtime().submit(std::move(second));
    (void)of_early->get();
    *has_early = true;
    (void)of_late->get();
    ASSERT_THAT(*early, testing::Each(sum_of({})));
    ASSERT_THAT(*late, testing::Each(static_cast<float>(size())));
  }
}

// What NCCL alone can't do. All ranks have the same bits, and they are not those of float32.
TEST_F(GpuHierarchy, GradientsTravelAsInt8) {
  if (!start_hierarchy()) return;
  const Floats data = floats(50'000, 0);
  std::vector<float> exact(data->size());
  for (size_t i = 0; i < data->size(); ++i) {
    const auto value = [i](int rank) {
      return std::sin(static_cast<float>(i) * 0.37F + static_cast<float>(rank));
    };
    (*data)[i] = value(rank());
    for (int rank = 0; rank < size(); ++rank) exact[i] += value(rank);
  }
  auto spec = spec_of(CollectiveKind::Allreduce, data->size(), DeviceKind::Cuda);
  spec->compression = Compression::Int8;
  (void)ops::runtime().submit(submission_of({}, "gradient", spec, data))->get();
  float largest = 0;
  for (size_t i = 0; i < data->size(); ++i) {
    largest = std::max(largest, std::abs((*data)[i] - exact[i]));
  }
  EXPECT_GT(largest, 1e-4F);
  EXPECT_LT(largest, 0.03F * static_cast<float>(size()));
  const Floats least = std::make_shared<std::vector<float>>(*data);
  const Floats most = std::make_shared<std::vector<float>>(*data);
  (void)allreduce({}, "least", least, DeviceKind::Host, ReduceOp::Min)->get();
  (void)allreduce({}, "most", most, DeviceKind::Host, ReduceOp::Max)->get();
  EXPECT_EQ(*least, *most);
}

}  // namespace
}  // namespace horon::gpu_session

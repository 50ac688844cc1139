// HORON_GPU_COLLECTIVES=hierarchical: NCCL within hosts, messages between them. The launcher says
// which ranks act as ranks of one host.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "horon/ops/cuda/cuda_event.h"
#include "horon/ops/hierarchical_gpu/host_shards.h"
#include "horon/tests/ops/session/gpu_session_support.h"

namespace horon::gpu_session {
namespace {

class GpuHierarchy : public GpuSession {
 protected:
  // Starts the session. Returns whether there are several hosts.
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
  EXPECT_THAT(*in_world, AllAre(sum_of({})));
  EXPECT_THAT(*in_set, AllAre(sum_of(local)));
}

// The ranks of a host without shared memory can't agree on what enters their devices.
TEST_F(GpuHierarchy, IsNotUsedWithoutSharedMemory) {
  (void)start_hierarchy({}, {{"HORON_SHARED_MEMORY", "0"}});
  const bool one_rank_each =
      ops::runtime().topology().host_count() == size() && !ops::runtime().topology().one_host();
  EXPECT_EQ(is_chosen(), one_rank_each);
  const Floats data = floats(5000, mine());
  (void)allreduce({}, "x", data)->get();
  EXPECT_THAT(*data, AllAre(sum_of({})));
}

// A tensor is late on one rank, because that rank needs the result of an earlier one first. The
// halves of the earlier allreduce meet the later collective on the device of the other rank of its
// host. Two kinds of collective are never fused.
TEST_F(GpuHierarchy, ALateTensorHoldsUpNoEarlierResult) {
  test::HostGpuLibraries::Options options;
  options.nccl.fills_device = true;
  // Without frozen plans, whose end may reverse the order of the two.
  if (!start_hierarchy(options, {{"HORON_FREEZE", "0"}})) return;
  const auto cuda = ops::gpu()->cuda();
  ops::CudaQueue program(cuda);
  (void)allreduce({}, "first", floats(20'000, 1))->get();  // to pin memory waits for the device
  for (int round = 0; round < 20; ++round) {
    const Floats early = floats(20'000, mine());
    const Floats late = floats(20'000, mine());
    // A group, which is packed and unpacked in the stream of its set.
    auto group = spec_of(CollectiveKind::Allreduce, early->size() - 7, DeviceKind::Cuda);
    group->parts.push_back({"y", {7}});
    Submission first = submission_of({}, "early", group, early);
    first.memory.front().count -= 7;
    const int64_t bytes = first.memory.front().count * static_cast<int64_t>(sizeof(float));
    first.memory.push_back(
        {first.memory.front().input + bytes, first.memory.front().output + bytes, 7});
    if (rank() == size() - 1) {  // on the other host: the exchange is late
      write_late(program, std::chrono::milliseconds(5));
      first.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
    }
    const Handle of_early = ops::runtime().submit(std::move(first));
    const auto has_early = std::make_shared<std::atomic<bool>>(rank() != 1);
    device().enqueue(program.stream(), [has_early] { return has_early->load(); });
    const bool by_nccl = round % 2 == 0;
    auto spec = spec_of(by_nccl ? CollectiveKind::Broadcast : CollectiveKind::Allreduce,
                        late->size(), DeviceKind::Cuda);
    if (!by_nccl) spec->reduce_op = ReduceOp::Max;
    spec->root = by_nccl ? size() - 1 : 0;
    Submission second = submission_of({}, by_nccl ? "sent" : "late", spec, late);
    second.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
    const Handle of_late = ops::runtime().submit(std::move(second));
    (void)of_early->get();
    *has_early = true;
    (void)of_late->get();
    ASSERT_THAT(*early, AllAre(sum_of({})));
    ASSERT_THAT(*late, AllAre(static_cast<float>(size())));
  }
}

// Longer than all slots of pinned memory together, beside short ones.
TEST_F(GpuHierarchy, LongTensorsGoInPieces) {
  if (!start_hierarchy()) return;
  const size_t longest = 9 * ops::HostShards::kBytes / sizeof(float) * 2 + 4321;
  std::vector<Floats> all;
  std::vector<Handle> handles;
  for (const size_t count : {longest, size_t{100}, longest / 3, size_t{70'000}}) {
    all.push_back(floats(count, mine()));
    handles.push_back(allreduce({}, "x" + std::to_string(count), all.back()));
  }
  for (const Handle& handle : handles) (void)handle->get();
  for (const Floats& one : all) {
    EXPECT_EQ(std::count(one->begin(), one->end(), sum_of({})), std::ssize(*one));
  }
}

// To give back pinned memory waits for the device, whose kernels wait for peers.
TEST_F(GpuHierarchy, ASetEndsWhileTheWorldWorks) {
  if (!start_hierarchy()) return;
  std::vector<int> everybody(static_cast<size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  for (int round = 0; round < 5; ++round) {
    const ProcessSet set = add_process_set(everybody);
    (void)allreduce(set, "in the set", floats(70'000, mine()))->get();
    std::vector<Handle> handles;
    for (int i = 0; i < 10; ++i) {
      handles.push_back(allreduce({}, "x" + std::to_string(i), floats(300'000, mine())));
    }
    remove_process_set(set);
    for (const Handle& handle : handles) (void)handle->get();
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

// Collectives of tensors on GPUs through the memory of the host.
#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/chunk_plan.h"
#include "horon/ops/cuda/cuda_event.h"
#include "horon/tests/ops/session/gpu_session_support.h"

namespace horon::gpu_session {
namespace {

using testing::HasSubstr;

using GpuThroughHost = GpuSession;

// Collectives that NCCL does not have, on elements of 4 bytes, so that all can use the tensors
// below.
struct BesideNccl {
  const char* name;
  DataType dtype;
  ReduceOp op;
};
constexpr BesideNccl kBesideNccl[] = {{"short", DataType::Int16, ReduceOp::Sum},
                                      {"mean", DataType::Int32, ReduceOp::Average},
                                      {"bits", DataType::Int32, ReduceOp::BitOr},
                                      {"adasum", DataType::Float32, ReduceOp::Adasum}};

template <class T>
void fill(const Floats& data, T value) {
  auto* const begin = reinterpret_cast<T*>(data->data());
  std::fill_n(begin, data->size() * sizeof(float) / sizeof(T), value);
}
template <class T>
bool are_all(const Floats& data, T value) {
  return all_are(
      std::span(reinterpret_cast<const T*>(data->data()), data->size() * sizeof(float) / sizeof(T)),
      value);
}

Handle submit_beside_nccl(const ProcessSet& set, const std::string& name, const BesideNccl& call,
                          const Floats& data) {
  const int me = rank() + 1;
  if (call.dtype == DataType::Int16) fill(data, static_cast<int16_t>(me));
  if (call.op == ReduceOp::Average) fill(data, me);
  if (call.op == ReduceOp::BitOr) fill(data, 1 << rank());
  if (call.op == ReduceOp::Adasum) fill(data, 3.0F);  // of equal vectors: that vector
  const size_t elements = data->size() * sizeof(float) / size_of(call.dtype);
  auto spec = spec_of(CollectiveKind::Allreduce, elements, DeviceKind::Cuda);
  spec->dtype = call.dtype;
  spec->reduce_op = call.op;
  Submission given = submission_of(set, name, std::move(spec), data);
  given.memory.front().count = static_cast<int64_t>(elements);
  return ops::runtime().submit(std::move(given));
}

bool is_right(const ProcessSet& set, const BesideNccl& call, const Floats& data) {
  int bits = 0;
  for (const int member : set.ranks()) bits |= 1 << member;
  const auto sum = static_cast<int>(sum_of(set));
  if (call.dtype == DataType::Int16) return are_all(data, static_cast<int16_t>(sum));
  if (call.op == ReduceOp::Average) return are_all(data, sum / set.size());
  if (call.op == ReduceOp::BitOr) return are_all(data, bits);
  return are_all(data, 3.0F);
}

// To pin memory waits for all work of the device: for kernels of NCCL too, which wait for peers.
TEST_F(GpuThroughHost, WhatNcclDoesNotHaveBesideIt) {
  start();
  std::vector<int> everybody(static_cast<size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const std::vector<ProcessSet> sets{{}, add_process_set(everybody)};
  std::mt19937 random(static_cast<uint32_t>(rank()) + 3);
  for (int round = 0; round < 6; ++round) {
    struct Call {
      ProcessSet set;
      std::string name;
      const BesideNccl* kind;  // null: a sum by NCCL
      Floats data;
      Handle handle;
    };
    std::vector<Call> calls;
    for (const ProcessSet& set : sets) {
      for (const size_t count : {7, 1000, 30'000 << (round % 4)}) {
        for (const BesideNccl& kind : kBesideNccl) {
          calls.push_back({set, kind.name + std::to_string(count), &kind, floats(count, 0), {}});
        }
        calls.push_back({set, "sum" + std::to_string(count), nullptr, floats(count, mine()), {}});
      }
    }
    std::shuffle(calls.begin(), calls.end(), random);
    for (Call& call : calls) {
      call.handle = call.kind == nullptr
                        ? allreduce(call.set, call.name, call.data)
                        : submit_beside_nccl(call.set, call.name, *call.kind, call.data);
    }
    for (Call& call : calls) {
      (void)call.handle->get();
      if (call.kind == nullptr) {
        ASSERT_THAT(*call.data, AllAre(sum_of(call.set)));
      } else {
        ASSERT_TRUE(is_right(call.set, *call.kind, call.data)) << call.name;
      }
    }
  }
}

// On rank 0 memory can't be pinned while its device is busy, so the collective after that is late
// there, and not on the other ranks. Meanwhile the collective of another set enters rank 0's
// device: on the others it must not wait for the late one.
TEST_F(GpuThroughHost, WhatComesLateBehindItHoldsUpNoOtherSet) {
  start();
  std::vector<int> everybody(static_cast<size_t>(size()));
  std::iota(everybody.begin(), everybody.end(), 0);
  const ProcessSet other = add_process_set(everybody);
  (void)allreduce({}, "first", floats(10, mine()))->get();
  (void)allreduce(other, "first", floats(10, mine()))->get();
  for (int round = 0; round < 3; ++round) {
    ops::CudaQueue program(ops::gpu()->cuda());
    if (rank() == 0) write_late(program, std::chrono::milliseconds(150));
    const size_t count = size_t{70'000} << round;  // of a size that the pool does not have yet
    const Floats copied = floats(count, 0), late = floats(20, mine()), own = floats(30, mine());
    const Handle first = submit_beside_nccl({}, "adasum", kBesideNccl[3], copied);
    const Handle second = allreduce({}, "late", late);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const Handle third = allreduce(other, "own", own);
    for (const Handle& handle : {third, second, first}) (void)handle->get();
    EXPECT_TRUE(is_right({}, kBesideNccl[3], copied));
    EXPECT_THAT(*late, AllAre(sum_of({})));
    EXPECT_THAT(*own, AllAre(sum_of({})));
  }
}

TEST_F(GpuThroughHost, WhereRanksShareAGpu) {
  test::HostGpuLibraries::Options options;
  start(options);
  const bool one_rank_each = ops::runtime().topology().host_count() == test_size();
  shutdown();
  if (one_rank_each) return;
  options.devices = 1;
  options.bus = "0000:3B:00.0";
  start(options, {{"HORON_GPU_COLLECTIVES", "nccl"}});
  EXPECT_THAT(error_of([&] { return allreduce({}, "x", floats(50, mine())); }),
              HasSubstr("share the GPU at 0000:3B:00.0"));
  shutdown();
  start(options);
  EXPECT_THAT(ops::gpu()->nccl_unavailable(), HasSubstr("share the GPU at 0000:3B:00.0"));
  const Floats data = floats(50, mine());
  EXPECT_EQ(error_of([&] { return allreduce({}, "x", data); }), "");
  EXPECT_THAT(*data, AllAre(sum_of({})));
  EXPECT_EQ(libraries_->opened_nccl(), nullptr);
  shutdown();
  options.nccl_host_id = std::to_string(test_rank());
  start(options);
  EXPECT_TRUE(ops::gpu()->uses_nccl());
  EXPECT_EQ(error_of([&] { return allreduce({}, "x", floats(50, mine())); }), "");
}

// Collectives of the host on copies of tensors, and those on tensors of the host, use the same
// cells of shared memory: both keep the order of the log, whichever tensors are ready first.
TEST_F(GpuThroughHost, CopiesAndTensorsOfTheHostKeepOneOrder) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  const auto cuda = ops::gpu()->cuda();
  ops::CudaQueue program(cuda);
  for (int round = 0; round < 20; ++round) {
    std::vector<Floats> all;
    std::vector<Handle> handles;
    for (int i = 0; i < 8; ++i) {
      const size_t count = i % 4 < 2 ? 100 : 50000;
      all.push_back(floats(count, mine() * static_cast<float>(i + 1)));
      const DeviceKind kind = i % 2 == 0 ? DeviceKind::Cuda : DeviceKind::Host;
      auto spec = spec_of(CollectiveKind::Allreduce, count, kind);
      spec->piece_bytes = core::ChunkPlan::kBytesLeast;  // the long ones go in chunks
      Submission submission =
          submission_of({}, "x" + std::to_string(i), std::move(spec), all.back());
      if (kind == DeviceKind::Cuda) {
        write_late(program, std::chrono::microseconds((rank() * 131 + i * 57 + round * 31) % 300));
        submission.ready = std::make_unique<ops::CudaEvent>(cuda, program.stream());
      }
      handles.push_back(ops::runtime().submit(std::move(submission)));
    }
    for (size_t i = 0; i < handles.size(); ++i) {
      (void)handles[i]->get();
      EXPECT_THAT(*all[i], AllAre(sum_of({}) * static_cast<float>(i + 1))) << i;
    }
  }
}

}  // namespace
}  // namespace horon::gpu_session

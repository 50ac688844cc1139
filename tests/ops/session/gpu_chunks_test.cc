// Tensors on GPUs that go through the memory of the host in chunks: the bits are those of the same
// collective on tensors of the host, which is not cut.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/chunk_plan.h"
#include "horon/tests/ops/scalar_reference.h"
#include "horon/tests/ops/session/gpu_session_support.h"
#include "horon/tests/ops/session/random_elements.h"

namespace horon::gpu_session {
namespace {

using core::ChunkPlan;

struct Case {
  CollectiveKind kind = CollectiveKind::Allreduce;
  DataType dtype = DataType::Float32;
  ReduceOp op = ReduceOp::Sum;
  size_t count = 0;
  Compression compression = Compression::None;
  bool in_place = true;
  int64_t piece_bytes = ChunkPlan::kBytesLeast;
};

class GpuChunks : public GpuSession {
 protected:
  Bytes result_of(const Case& tested, DeviceKind device) {
    const auto seed = static_cast<uint32_t>(tested.count + 31 * static_cast<size_t>(rank()));
    const auto input =
        std::make_shared<Bytes>(random_elements(tested.dtype, tested.count, seed + 1));
    const auto output =
        tested.in_place ? input : std::make_shared<Bytes>(input->size(), std::byte{0x5a});
    const Bytes before = *input;
    Submission submission;
    submission.name = "x" + std::to_string(number_++);
    submission.spec = spec(tested, device);
    if (device == DeviceKind::Cuda) submission.device_index = ops::gpu()->device();
    submission.memory = {{input->data(), output->data(), static_cast<int64_t>(tested.count)}};
    submission.keep_alive = input;
    (void)ops::runtime().submit(std::move(submission))->get();
    EXPECT_TRUE(tested.in_place || are_same(*input, before));
    return *output;
  }

  void check(const Case& tested) {
    const Bytes expected = result_of(tested, DeviceKind::Host);
    const bool same = are_same(result_of(tested, DeviceKind::Cuda), expected);
    EXPECT_TRUE(same) << to_string(tested.kind) << ' ' << to_string(tested.op) << " of "
                      << tested.count << ' ' << to_string(tested.dtype);
  }

  static std::shared_ptr<EntrySpec> spec(const Case& tested, DeviceKind device) {
    auto out = spec_of(tested.kind, tested.count, device);
    out->dtype = tested.dtype;
    out->reduce_op = tested.op;
    out->compression = tested.compression;
    out->root = size() - 1;
    if (tested.kind != CollectiveKind::Allreduce) return out;
    out->piece_bytes = tested.piece_bytes;
    if (is_floating(tested.dtype)) {
      out->prescale = 0.75;
      out->postscale = 3;
    }
    return out;
  }

  static size_t chunk_elements(DataType dtype) {
    return static_cast<size_t>(ChunkPlan::kBytesLeast) / size_of(dtype);
  }

  void check_lengths() {
    const size_t chunk = chunk_elements(DataType::Float32);
    for (const size_t count : {size_t{0}, size_t{1}, chunk - 1, chunk, chunk + 1, 4 * chunk,
                               4 * chunk + 1, 11 * chunk + 77}) {
      check({.count = count});
      check({.count = count, .in_place = false});
      check({.count = count, .compression = Compression::BFloat16});
      check({.count = count, .compression = Compression::Int8});
    }
  }

  int number_ = 0;
};

const std::map<std::string, std::string> kThroughHost = {{"HORON_GPU_COLLECTIVES", "host"}};

TEST_F(GpuChunks, EveryLength) {
  start({}, kThroughHost);
  check_lengths();
}

TEST_F(GpuChunks, EveryTypeAndReduction) {
  start({}, kThroughHost);
  for (int type = 0; type < kDataTypeCount; ++type) {
    const auto dtype = static_cast<DataType>(type);
    for (const ReduceOp op : ops::kAllReduceOps) {
      if (!why_no_reduction(dtype, op).empty()) continue;
      check({.dtype = dtype, .op = op, .count = 2 * chunk_elements(dtype) + 5});
    }
  }
}

// MPI adds in an order that depends on the length, so a batch whose bits would change is not cut.
TEST_F(GpuChunks, ByMpi) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}, {"HORON_ALLREDUCE", "mpi"}});
  check_lengths();
  for (const DataType dtype : {DataType::Float64, DataType::Float16, DataType::Int32}) {
    for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Max}) {
      check({.dtype = dtype, .op = op, .count = 5 * chunk_elements(dtype) + 5});
    }
  }
}

// A batch that is rounded between hosts is not cut either.
TEST_F(GpuChunks, RoundedForTheWire) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}, {"HORON_WIRE_DTYPE", "bfloat16"}});
  check_lengths();
}

TEST_F(GpuChunks, Broadcast) {
  start({}, kThroughHost);
  const auto chunk = static_cast<size_t>(ChunkPlan::kBytes) / sizeof(float);
  for (const size_t count : {chunk, 3 * chunk + 3}) {
    check({.kind = CollectiveKind::Broadcast, .count = count});
    check({.kind = CollectiveKind::Broadcast, .count = count, .in_place = false});
  }
}

// A kernel packs each chunk, and one unpacks it; a batch of one chunk is not cut.
TEST_F(GpuChunks, CountsOfKernels) {
  start({}, kThroughHost);
  const auto kernels_of = [&](size_t count) {
    (void)result_of({.count = count}, DeviceKind::Cuda);
    const int before = device().launches();
    (void)result_of({.count = count}, DeviceKind::Cuda);
    return device().launches() - before;
  };
  const size_t chunk = chunk_elements(DataType::Float32);
  EXPECT_EQ(kernels_of(chunk), 2);
  EXPECT_EQ(kernels_of(2 * chunk), 4);
  EXPECT_EQ(kernels_of(9 * chunk - 5), 18);
}

}  // namespace
}  // namespace horon::gpu_session

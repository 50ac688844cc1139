// Allgathers and reducescatters of tensors on GPUs that go through the memory of the host in
// chunks: the bits are those of the same collective on tensors of the host, which is not cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/execution/chunk_plan.h"
#include "horon/tests/ops/scalar_reference.h"
#include "horon/tests/ops/session/gpu_session_support.h"
#include "horon/tests/ops/session/random_elements.h"

namespace horon::gpu_block_chunks {
namespace {

using namespace horon::gpu_session;

struct Case {
  CollectiveKind kind = CollectiveKind::Allgather;
  std::vector<int64_t> rows;    // of each rank
  std::vector<int64_t> widths;  // of each tensor
  ReduceOp op = ReduceOp::Sum;
  DataType dtype = DataType::Float32;
};

class GpuBlockChunks : public GpuSession {
 protected:
  // The rows of this rank, of all tensors.
  std::vector<Bytes> result_of(const Case& tested, DeviceKind device) {
    const bool gathers = tested.kind == CollectiveKind::Allgather;
    const int64_t all = std::accumulate(tested.rows.begin(), tested.rows.end(), int64_t{0});
    const int64_t rows = gathers ? tested.rows[static_cast<size_t>(rank())] : all;
    auto spec = std::make_shared<EntrySpec>();
    spec->kind = tested.kind;
    spec->device = device;
    spec->reduce_op = tested.op;
    spec->dtype = tested.dtype;
    if (!gathers) {
      spec->splits = tested.rows;
      if (is_floating(tested.dtype)) {
        spec->prescale = 0.75;
        spec->postscale = 3;
      }
    }
    Submission given;
    given.name = "blocks" + std::to_string(number_++);
    if (device == DeviceKind::Cuda) given.device_index = ops::gpu()->device();
    const auto inputs = std::make_shared<std::vector<Bytes>>();
    for (const int64_t width : tested.widths) {
      spec->parts.push_back({"part", {rows, width}});
      const auto seed = static_cast<uint32_t>(rows + width) + 31 * static_cast<uint32_t>(rank());
      inputs->push_back(random_elements(tested.dtype, static_cast<size_t>(rows * width), seed));
    }
    const size_t element_bytes = size_of(tested.dtype);
    for (const Bytes& input : *inputs) {
      given.memory.push_back(
          {input.data(), nullptr, static_cast<int64_t>(input.size() / element_bytes)});
    }
    given.spec = std::move(spec);
    const auto outputs = std::make_shared<std::vector<Bytes>>(tested.widths.size());
    given.allocate_output = [outputs, element_bytes](size_t part, int64_t elements,
                                                     core::MemoryQueue&) {
      Bytes& output = (*outputs)[part];
      output.assign(static_cast<size_t>(elements) * element_bytes, std::byte{0x5a});
      return output.data();
    };
    given.keep_alive = inputs;
    (void)ops::runtime().submit(std::move(given))->get();
    return *outputs;
  }

  void check(const Case& tested) {
    const auto expected = result_of(tested, DeviceKind::Host);
    EXPECT_TRUE(std::ranges::equal(result_of(tested, DeviceKind::Cuda), expected, are_same))
        << to_string(tested.kind) << ' ' << to_string(tested.op) << " of " << tested.rows.front()
        << " rows on rank 0, " << to_string(tested.dtype);
  }

  int kernels_of(const Case& tested) {
    (void)result_of(tested, DeviceKind::Cuda);
    const int before = device().launches();
    (void)result_of(tested, DeviceKind::Cuda);
    return device().launches() - before;
  }

  // The rows, of one float32 each, in a chunk of equal blocks.
  static int64_t chunk() {
    return core::ChunkPlan::kBytes / size() / static_cast<int64_t>(sizeof(float)) / 64 * 64;
  }
  static std::vector<int64_t> alike(int64_t rows) {
    return std::vector<int64_t>(static_cast<size_t>(size()), rows);
  }
  // None on rank 0, most on the last.
  static std::vector<int64_t> rising(int64_t most) {
    std::vector<int64_t> rows;
    for (int rank = 0; rank < size(); ++rank) rows.push_back(most * rank / std::max(1, size() - 1));
    return rows;
  }

  // As a reduce to one rank, and where one has all rows of an allgather.
  static std::vector<int64_t> of_last(int64_t all) {
    std::vector<int64_t> rows = alike(0);
    rows.back() = all;
    return rows;
  }

  // With three or more hosts, the sums of the last chunks go in a ring, which adds the hosts in
  // another order, whereas those of the whole are sent directly.
  static std::vector<int64_t> more_on_first(int64_t most) {
    std::vector<int64_t> rows = alike(most / 4 * 3);
    rows.front() = most;
    return rows;
  }

  void check_all() {
    for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
      check({kind, alike(chunk()), {1}});
      for (const int64_t rows : {chunk() + 1, 3 * chunk() + 77}) {
        check({kind, alike(rows), {1}});
        check({kind, more_on_first(rows), {1}});
      }
      check({kind, rising(3 * chunk() + 77), {1}});
      check({kind, rising(chunk() / 4), {1, 13, 2}});
      check({kind, of_last(2 * chunk() * size()), {1}});
    }
    for (const ReduceOp op : {ReduceOp::Average, ReduceOp::Max, ReduceOp::Product}) {
      check({CollectiveKind::Reducescatter, alike(2 * chunk() + 1), {1}, op});
    }
  }

  int number_ = 0;
};

TEST_F(GpuBlockChunks, EveryLength) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  check_all();
}

TEST_F(GpuBlockChunks, EveryTypeAndReduction) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  for (int type = 0; type < kDataTypeCount; ++type) {
    const auto dtype = static_cast<DataType>(type);
    const auto rows = static_cast<int64_t>(4 * static_cast<size_t>(chunk()) / size_of(dtype));
    check({CollectiveKind::Allgather, alike(rows + 5), {1}, ReduceOp::Sum, dtype});
    for (const ReduceOp op : ops::kAllReduceOps) {
      // Where a batch is cut depends on the size of its elements alone.
      const bool is_needed =
          op == ReduceOp::Sum || dtype == DataType::Float32 || dtype == DataType::Int32;
      if (!is_needed || !why_no_reduction(dtype, op).empty()) continue;
      check({CollectiveKind::Reducescatter, alike(rows + 5), {1}, op, dtype});
    }
  }
}

// MPI adds in an order that depends on the length, so a batch whose bits would change is not cut.
TEST_F(GpuBlockChunks, ByMpi) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}, {"HORON_SHARED_MEMORY", "off"}});
  check_all();
  const Case sum{CollectiveKind::Reducescatter, alike(4 * chunk()), {1}};
  // Hosts with one rank each need no shared memory for an exchange of their own.
  const bool by_mpi = ops::runtime().topology().host_count() < size();
  EXPECT_EQ(kernels_of(sum), by_mpi && size() > 2 ? 2 : 8);
}

// A batch that is rounded between hosts is not cut either.
TEST_F(GpuBlockChunks, RoundedForTheWire) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}, {"HORON_WIRE_DTYPE", "bfloat16"}});
  const bool between_hosts = ops::runtime().topology().host_count() > 1;
  if (between_hosts) check_all();
  const Case sum{CollectiveKind::Reducescatter, alike(4 * chunk()), {1}};
  EXPECT_EQ(kernels_of(sum), between_hosts ? 2 : 8);
}

// A kernel packs each chunk, and one unpacks it.
TEST_F(GpuBlockChunks, CountsOfKernels) {
  start({}, {{"HORON_GPU_COLLECTIVES", "host"}});
  for (const CollectiveKind kind : {CollectiveKind::Allgather, CollectiveKind::Reducescatter}) {
    EXPECT_EQ(kernels_of({kind, alike(chunk()), {1}}), 2);
    EXPECT_EQ(kernels_of({kind, alike(4 * chunk()), {1}}), 8);
  }
}

}  // namespace
}  // namespace horon::gpu_block_chunks

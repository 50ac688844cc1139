#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "horon/ops/cuda/move_kernels.h"

#define HORON_DEVICE_FUNCTION __device__
#include "horon/ops/cuda/move_body.inc"

namespace horon::ops {
namespace {

constexpr int kThreads = 256;
// Enough to hide the latency of memory; the blocks take chunk after chunk.
constexpr int kBlocksPerMultiprocessor = 8;

struct DeviceMachine {
  static __device__ float from_half(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
  static __device__ float from_bfloat16(uint16_t bits) {
    return __bfloat162float(__ushort_as_bfloat16(bits));
  }
  static __device__ uint16_t to_half(float value) {
    return __half_as_ushort(__float2half_rn(value));
  }
  static __device__ uint16_t to_bfloat16(float value) {
    return __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
};

// A launch as the parameter of a kernel.
template <size_t Moves>
struct Table {
  MoveParameters parameters;
  Move moves[Moves];
};

template <class Action, size_t Moves>
__global__ void __launch_bounds__(kThreads)
    move_kernel(const __grid_constant__ Table<Moves> table, uint32_t from_size, uint32_t to_size) {
  for (uint32_t chunk = blockIdx.x; chunk < table.parameters.chunks; chunk += gridDim.x) {
    move_body::run_chunk<Action>(table.parameters, table.moves, from_size, to_size, chunk,
                                 {threadIdx.x, blockDim.x});
  }
}

// A small table costs less to launch: its size is what is sent with each launch.
template <class Visit>
void visit_table_size(size_t moves, const Visit& visit) {
  if (moves <= 8) return visit(std::integral_constant<size_t, 8>());
  if (moves <= 128) return visit(std::integral_constant<size_t, 128>());
  visit(std::integral_constant<size_t, MoveLaunch::kMovesMax>());
}

}  // namespace

int launch_moves(const MoveLaunch& launch, int multiprocessors, CudaStream stream) {
  const MoveParameters& parameters = launch.parameters();
  if (parameters.chunks == 0) return cudaSuccess;
  cudaError_t result = cudaErrorInvalidValue;
  move_body::visit_action<DeviceMachine>(parameters, [&](auto tag) {
    using Action = typename decltype(tag)::Type;
    visit_table_size(launch.moves().size(), [&](auto size) {
      Table<decltype(size)::value> table;
      table.parameters = parameters;
      std::copy(launch.moves().begin(), launch.moves().end(), table.moves);
      const auto blocks = std::min(
          parameters.chunks, static_cast<uint32_t>(multiprocessors * kBlocksPerMultiprocessor));
      // Not <<<>>>: what it returns must be asked of cudaGetLastError(), which may tell an older
      // error of the program's own, and forgets it.
      cudaLaunchConfig_t config = {};
      config.gridDim = blocks;
      config.blockDim = kThreads;
      config.stream = static_cast<cudaStream_t>(stream);
      result = cudaLaunchKernelEx(&config, move_kernel<Action, decltype(size)::value>, table,
                                  static_cast<uint32_t>(size_of(parameters.from_type)),
                                  static_cast<uint32_t>(size_of(parameters.to_type)));
    });
  });
  return result;
}

int load_move_kernels() {
  cudaError_t result = cudaSuccess;
  const auto load = [&](MoveKind kind, DataType from, DataType to) {
    MoveParameters parameters;
    parameters.kind = kind;
    parameters.from_type = from;
    parameters.to_type = to;
    move_body::visit_action<DeviceMachine>(parameters, [&](auto tag) {
      using Action = typename decltype(tag)::Type;
      for (const size_t moves : {size_t{1}, size_t{128}, MoveLaunch::kMovesMax}) {
        visit_table_size(moves, [&](auto size) {
          cudaFuncAttributes attributes;
          const cudaError_t loaded =
              cudaFuncGetAttributes(&attributes, move_kernel<Action, decltype(size)::value>);
          if (result == cudaSuccess) result = loaded;
        });
      }
    });
  };
  for (int from = 0; from < kDataTypeCount; ++from) {
    for (int to = 0; to < kDataTypeCount; ++to) {
      load(MoveKind::Floats, static_cast<DataType>(from), static_cast<DataType>(to));
    }
    load(MoveKind::Divide, static_cast<DataType>(from), static_cast<DataType>(from));
  }
  load(MoveKind::Bytes, DataType::UInt8, DataType::UInt8);
  return result;
}

}  // namespace horon::ops

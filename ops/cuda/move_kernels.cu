#include <algorithm>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "horon/ops/cuda/move_kernels.h"

#define HORON_DEVICE_FUNCTION __device__
#include "horon/ops/cuda/move_body.inc"

namespace horon::ops {
namespace {

// A chunk is what a block of so many threads has under way at once, so each block does one chunk
// and ends. On an H200 this was faster than few blocks that take chunk after chunk.
constexpr int kThreads = 256;
static_assert(kThreads * move_body::kBytesUnderWay == MoveParameters::kChunkBytes);

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

// Without a wish the compiler uses few registers, so that many blocks have memory under way. Where
// it would use too few, some values would spill to memory.
template <class Action>
inline constexpr int kBlocksWished = 0;
template <class T>
inline constexpr int kBlocksWished<move_body::Divide<T>> = 5;

template <class Action, size_t Moves>
__global__ void __launch_bounds__(kThreads, kBlocksWished<Action>)
    move_kernel(const __grid_constant__ Table<Moves> table, uint32_t from_size, uint32_t to_size) {
  move_body::run_chunk<Action>(table.parameters, table.moves, from_size, to_size, blockIdx.x,
                               {threadIdx.x, kThreads});
}

// A small table costs less to launch, since all of it is sent with each launch (on an H200 0.2,
// 1.0, 1.7 and 2.5 us more than none).
template <class Visit>
void visit_table_size(size_t moves, const Visit& visit) {
  if (moves <= 8) return visit(std::integral_constant<size_t, 8>());
  if (moves <= 128) return visit(std::integral_constant<size_t, 128>());
  if (moves <= 1024) return visit(std::integral_constant<size_t, 1024>());
  visit(std::integral_constant<size_t, MoveLaunch::kMovesMax>());
}

}  // namespace

int launch_moves(const MoveLaunch& launch, CudaStream stream) {
  const MoveParameters& parameters = launch.parameters();
  if (parameters.chunks == 0) return cudaSuccess;
  cudaError_t result = cudaErrorInvalidValue;
  move_body::visit_action<DeviceMachine>(parameters, [&](auto tag) {
    using Action = typename decltype(tag)::Type;
    visit_table_size(launch.moves().size(), [&](auto size) {
      Table<decltype(size)::value> table;
      table.parameters = parameters;
      std::copy(launch.moves().begin(), launch.moves().end(), table.moves);
      // Not <<<>>>, whose result only cudaGetLastError() tells: that may return an older error of
      // the program's own, and forgets it.
      cudaLaunchConfig_t config = {};
      config.gridDim = parameters.chunks;
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
      for (const size_t moves : {size_t{8}, size_t{128}, size_t{1024}, MoveLaunch::kMovesMax}) {
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

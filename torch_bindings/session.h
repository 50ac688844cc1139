// Start of a LibTorch program with Horon, and the device that its rank trains on.
#pragma once

#include <string_view>

#include <c10/core/Device.h>

#include "horon/core/base/version.h"
#include "horon/ops/session/session.h"

namespace horon {

// Collective over all ranks: starts the session (see init_session() for MPI, knobs and errors),
// then divides the cores among the ranks of this host: a rank of LibTorch would otherwise start as
// many OpenMP threads as there are cores, and N ranks on one host would fight for them. The quota
// of CPU time of a container counts as so many cores, also where it holds one rank only. The
// division is left alone if OMP_NUM_THREADS or MKL_NUM_THREADS is set or the program has called
// at::set_num_threads() or omp_set_num_threads() with another number than that of the cores, with
// or without their hardware threads; HORON_THREADS wins over all. (Under Open MPI, LibTorch with
// MKL has one thread by itself, from which omp_set_num_threads(1) can't be told.) It applies to the
// calling thread (with its own OpenMP regions) and to threads that use LibTorch for the first time
// later, so call init() on the thread that trains. A second call while the session runs does
// nothing. `headers` is left to its default: the version that the program was compiled with. Throws
// Error(Config), also if that is not the version of the library.
void init(const InitOptions& options = {}, std::string_view headers = kHeaderVersion);

// The device for the model and the data of this rank. A GPU: the one numbered local_rank() modulo
// the GPUs that the rank may use (CUDA_VISIBLE_DEVICES); it also becomes the current device of this
// thread. The CPU: where no rank has a GPU, or where LibTorch's CUDA library is not in the process
// (CMake links it: HORON_TORCH_CUDA). Throws Error(NotInitialized), and Error(Config) where some
// ranks have a GPU and others none. Where ranks share a GPU, or NCCL can't be used for another
// reason, collectives go through the host's memory, with a warning; HORON_GPU_COLLECTIVES=nccl
// makes that an Error(Config) here. CUDA_VISIBLE_DEVICES= (empty) makes it the CPU, and with
// HORON_GPU_COLLECTIVES=host it is the CPU on ranks without a GPU, beside others that have one.
// With a process set, only its members count: some ranks of a job may have GPUs, and others none.
// Throws Error(InvalidArgument) if this rank is not in the set, and Error(Config) for a set with
// GPUs that its members made too early (see add_process_set_among()).
c10::Device device(const ProcessSet& process_set = {});

}  // namespace horon

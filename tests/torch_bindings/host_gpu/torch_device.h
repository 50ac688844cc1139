// LibTorch's device "cuda" without a GPU: its streams are those of a HostCuda, its memory is memory
// of the host, its kernels are LibTorch's own for the CPU, run in the current stream. A program
// that links this can use tensors on "cuda" as on a GPU: autograd has its device threads, streams
// can be changed, and what is not ordered by an event comes out wrong.
//
// What differs from a GPU: an operation that makes a new tensor waits on the host until its stream
// has come to it (an operation in place does not); and one that draws random numbers waits too, so
// that it takes them from the generator of the device in the order of the calls. (A fused dropout,
// which has no argument for a generator, takes them from that of the CPU.)
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Stream.h>

#include "horon/tests/support/host_gpu/host_cuda.h"

namespace horon::test {

// Once in a process, before anything asks LibTorch for the device; one HostCuda for each of them.
void install_torch_device(std::vector<std::shared_ptr<HostCuda>> devices);

// True: LibTorch finds no device, as in a process that may use none. Those that are in use stay.
void hide_torch_devices(bool hidden);

// How often LibTorch has made the host wait for a device since the process began: item(), copies to
// the host.
int torch_host_waits();
void count_torch_host_wait();  // for the kernels

// A stream of its own.
c10::Stream new_stream(int device = 0);
// Enqueues something in the current stream of the calling thread.
void enqueue_in_current_stream(std::function<void()> work, int device = 0);
// Returns when the current stream of the calling thread has come to its end.
void drain_current_stream(int device = 0);

// LibTorch's default generator of the device; negative: of the current one of the calling thread.
const at::Generator& generator_of(int device);

// Planted faults, until they are taken back. LosesWaits: LibTorch's streams do not wait for events,
// and each piece of work of all other streams takes `us` longer. LosesRecords: events that are
// recorded in LibTorch's streams happen at once, and each piece of work of these takes `us` longer.
enum class Fault : uint8_t { None, LosesWaits, LosesRecords };
void plant(Fault fault, int us = 0);

}  // namespace horon::test

// One entry on its way from the program to the runtime's loop.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "horon/core/base/entry_spec.h"
#include "horon/core/execution/entry_work.h"
#include "horon/core/execution/event.h"
#include "horon/core/runtime/handle.h"

namespace horon::core {

inline constexpr uint32_t kWorldSet = 0;  // the process set of all ranks
// Numbers from here up to those of pairs (pair_sets.h): sets that their members have made alone,
// with a number of the program's. Numbers below: sets that all ranks have made, counted in order.
inline constexpr uint32_t kFirstNumberedSet = uint32_t{1} << 30;
// Of the program's numbers, those from here on are Python's, for groups of torch.distributed.
inline constexpr uint32_t kFirstGroupNumber = uint32_t{1} << 29;

struct Submission {
  uint32_t set = kWorldSet;
  std::string name;  // at most kNameBytesMax bytes, unique among entries in flight on this rank
  std::shared_ptr<const EntrySpec>
      spec;  // shared, so that a training step copies no names and shapes

  // The elements of the spec's parts, in order. Adjacent parts that lie one behind the other in
  // memory may be given as one MemoryPart (a gradient bucket is one): then nothing is packed.
  // Owned by keep_alive: where a collective fails, a peer may write here for as long as the process
  // lives, so memory on the caller's stack will not do.
  std::vector<MemoryPart> memory;
  // Only for 16-bit compression in host memory. The inputs already have the 16-bit type and have
  // been multiplied by the prescale; the collective works in that memory. The outputs are float32,
  // in other memory.
  bool narrowed = false;
  // The spec says Host, but the memory is on this rank's CUDA device and is copied to the host for
  // the collective. Memory on the device needs it in a mixed set (SetResources::mixed); refused in
  // any other set.
  bool copied_to_host = false;

  // Only for moves_blocks() (execution/block_layout.h), with one MemoryPart per part. Called in the
  // loop, on any thread, for each part, when the number of elements of its result is known. Returns
  // memory that keep_alive or this callback owns. If it returns null or throws, that is the error
  // of this rank's handle alone; the others get their results.
  AllocateOutput allocate_output;
  // Allgather, Alltoall, Gather at its root, of one part, in host memory: where the result may go
  // in place of memory from allocate_output: one block for each member of the set, in their order.
  // allocate_output is still called where the collective can't write there, or where a member sends
  // another number of elements. The blocks must overlap neither each other nor the input, but this
  // rank's own block may be the part of the input that it copies. Empty: as above.
  std::vector<OutputBlock> output_blocks;

  // Alltoall, and the root of Scatter: rows that each member of the set gets, part by part. Other
  // kinds: empty.
  std::vector<int64_t> splits;

  // A thread of the program waits for it from now on, and submits nothing meanwhile.
  bool awaited = false;

  // Parts that this rank did not produce in this step (a gradient of an unused parameter): their
  // memory holds the neutral contribution. Empty: all parts are here. One flag per part of the
  // spec.
  std::vector<bool> absent;

  // The index of the device that holds the memory; 0 for host memory. A rank works on one device of
  // each kind (MemoryDomain::device_index()): memory of another one is refused.
  int device_index = 0;

  // Happens when the memory may be read and written; null: now. For memory with a queue it is a
  // point in the producer's stream, which the device need not have reached.
  std::unique_ptr<Event> ready;
  // Owns `memory`. Released, with allocate_output and `ready`, once the handle has finished and its
  // event has happened, on a thread of the program: by the end of this or of a later wait, by
  // release_finished() or by shutdown(). Never released if the collective has failed while it ran:
  // then a peer may still write to the memory.
  std::shared_ptr<void> keep_alive;
  std::shared_ptr<HandleState> handle;
};

// A call that was wrong on this rank alone: the entry fails with this text on the others.
struct Refusal {
  uint32_t set = 0;
  std::string name;
  std::string text;
};

inline constexpr size_t kNameBytesMax = 4096;
inline constexpr size_t kPartsMax = 65536;

}  // namespace horon::core

// Process sets: any ranks of the job that do collectives among themselves.
//
//   horon::ProcessSet even = horon::add_process_set({0, 2, 4});
//   if (even.includes_me()) y = horon::allreduce(x, {.process_set = even});
//
// Each set has an order of its own: a collective of one never waits for one of another, and names
// need to be unique within a set only. Sets may overlap. Ranks are those of the world everywhere:
// in roots, in messages, in lists.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace horon {

// Names a set of one session; copies name the same set. Default: all ranks, in any session.
class ProcessSet {
 public:
  ProcessSet() = default;
  // For add_process_set(), which makes the set itself. `ranks` ascending. `session`: as
  // ops::session_number() tells it.
  ProcessSet(uint32_t id, std::vector<int> ranks, int me, uint32_t session);

  // The number of the set in the library; every call that takes a set asks for it. Throws
  // Error(InvalidArgument) in a later session, where the number may belong to another set.
  uint32_t id() const;
  bool is_world() const { return id_ == 0; }
  // Ascending. Throws Error(NotInitialized) for the set of all ranks outside init() .. shutdown().
  std::vector<int> ranks() const;
  int size() const;
  // This rank's index in ranks(); -1 if it is not in the set.
  int rank() const;
  bool includes_me() const { return rank() >= 0; }

 private:
  uint32_t id_ = 0;
  uint32_t session_ = 0;
  std::shared_ptr<const std::vector<int>> ranks_;  // null: all
  int me_ = -1;
};

// All of these but add_process_set_among() and leave_process_set() are collective over all ranks of
// the job: each rank calls them with the same arguments, in the same order, also ranks that are not
// in the set. They wait for the others. They throw Error(Mismatch), which names the ranks, if the
// arguments differ, and Error(InvalidArgument).

// `ranks` in any order, each once.
ProcessSet add_process_set(std::vector<int> ranks);
// Waits for what the set's members have submitted. A collective that only some of them have
// submitted fails on these.
void remove_process_set(const ProcessSet& set);

// Makes a set among its members alone: each of them calls this with the same ranks and the same
// number, and the other ranks of the job do not. `number`: less than 2^29 (the Python package takes
// the numbers from there to 2^30), and a new one for each call of a rank, also after a failed one.
// Each rank makes and removes its sets in an order that all ranks share, such as that of the
// numbers: else ranks wait for each other in a circle. The set's collectives run as those of any
// set; on GPUs only if it is made after the first add_process_set() or order_sets_on_gpus() of all
// ranks. For it remove_process_set() is a call of all members, and waits even for a member that
// has left instead. A member that does not come is reported by its rank, as a stall. If their lists
// of ranks differ, they throw Error(Mismatch) with both lists. But if the lowest member of a rank's
// list does not list that rank, the rank waits for it: a stall. If one member fails while another
// one waits for it in MPI, perhaps for ever, MPI can't be used any more, and the error ends the
// job: all ranks get it, and none waits for others in MPI_Finalize().
ProcessSet add_process_set_among(std::vector<int> ranks, uint32_t number);

// From here on the collectives on GPUs of all sets keep one order: otherwise kernels of several
// sets could wait for each other for ever. Each of them then takes a small message between its
// members. add_process_set() does that too; sets that their members make alone need one of the two
// before. Collective over all ranks of the job. Does nothing the second time, and where there are
// no GPUs.
void order_sets_on_gpus();

// Says that this member has no more calls for a set that its members made alone. Returns at once,
// whatever the others do. What all members have submitted completes; what another one submits from
// now on fails there (RankLeft), once all others have submitted it too or left. Messages (send,
// recv) stay open: they concern two ranks alone. A set that all members have left or removed is
// removed.
void leave_process_set(const ProcessSet& set);

// Makes one set for each color, of the ranks that gave it, and returns this rank's set. Like
// MPI_Comm_split(); colors are any numbers. All ranks make the sets of all colors, in the order of
// the colors, and process_sets() lists them. To remove them, all ranks remove each of them, in the
// same order. So it is with the three calls below.
ProcessSet split_process_set(int color);
// The ranks of this host; the ranks with this local_rank on all hosts.
ProcessSet add_local_process_set();
ProcessSet add_cross_process_set();
// The ranks whose number is even, or odd, as this rank's.
ProcessSet add_even_odd_process_set();

// All sets that there are now, the set of all ranks first. Local.
std::vector<ProcessSet> process_sets();

}  // namespace horon

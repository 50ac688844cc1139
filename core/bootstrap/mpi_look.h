// A look at MPI: calls that ask what has come, and do not wait for it.
#pragma once

namespace horon::core {

// From now on Open MPI yields the core while it waits, unless the user has set this
// (OMPI_MCA_mpi_yield_when_idle, which mpirun sets too). For more ranks than cores: a rank that
// spins keeps the core from the one that it waits for. mpirun does this where there are more ranks
// than slots, but srun does not. Does nothing in other libraries, such as MPICH.
void let_mpi_yield();

// While one lives, no call of MPI gives the core up.
//
// Open MPI yields inside every call that finds nothing, on hosts with more ranks than slots (its
// parameter mpi_yield_when_idle, for calls that wait in a loop). Beside threads that compute, each
// such yield costs a time slice of some milliseconds, and whoever only looks has several of them
// for each message. Horon sleeps between its looks instead (core/runtime/pacer.h), as shortly as it
// chooses.
//
// Affects all threads of the process: one that waits in MPI spins as long as this lives. Only one
// at a time, on the thread that has the right to call MPI. Does nothing where the library has no
// such switch (MPICH), or is set to spin.
class MpiLook {
 public:
  MpiLook() noexcept;
  ~MpiLook();
  MpiLook(const MpiLook&) = delete;
  MpiLook& operator=(const MpiLook&) = delete;

 private:
  bool yields_;  // what Open MPI did before
};

}  // namespace horon::core

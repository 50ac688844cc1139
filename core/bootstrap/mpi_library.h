// MPI's life in this process: begun and ended by Horon if nobody else does.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <string_view>

#include "horon/core/base/error.h"

namespace horon::core {

// Made and ended by the same thread, which must be the one that may finalise MPI.
class MpiLibrary {
 public:
  // Initialises MPI for calls from several threads if nobody has. Throws Error(Config) if MPI has
  // ended already, naming the cure.
  MpiLibrary();
  // Ends MPI if this object began it, unless MPI_Finalize() has begun: all ranks must come here.
  // Not after abandon().
  ~MpiLibrary();
  MpiLibrary(const MpiLibrary&) = delete;
  MpiLibrary& operator=(const MpiLibrary&) = delete;

  bool owns_mpi() const { return owns_mpi_; }
  // An Error(Config) that names the cure if MPI runs for one thread only, which is too little for
  // Horon. Not thrown: MPI works, so the ranks can still agree on it.
  std::optional<Error> thread_fault() const;
  // Whether several threads may call MPI at the same time; else one after the other.
  bool allows_threads_at_once() const;
  // What the introduction of a job adds if no launcher seems to have started it. While MPI runs.
  static std::string_view remark_on_launch();
  // "Open MPI v4.1.4, ..."; works at any time.
  static std::string version();

  // `action` is called when MPI_Finalize begins, whoever calls it (also ~MpiLibrary()), while MPI
  // still works: so a program that finalises MPI first does not pull it away below a running
  // session. Call this while MPI runs; a later action takes the place of the earlier one. One
  // thread at a time. Throws Error(OperationFailed).
  static void at_finalize(void (*action)());

  // From now on no thread may wait in MPI for other ranks, since the job or a call of MPI's has
  // failed; MPI is left as it is. All ranks must abandon it: one that does not would wait for the
  // others in MPI_Finalize. Any thread.
  void abandon() noexcept { abandoned_ = true; }
  bool abandoned() const noexcept { return abandoned_; }
  // False if MPI was abandoned and allows only one thread at a time: the abandoned call may still
  // be inside MPI, and nobody knows when it returns.
  bool may_call() const noexcept { return !abandoned_ || allows_threads_at_once(); }
  // MPI has not ended, and may still be called to give back what Horon holds of it.
  bool usable() const noexcept;

 private:
  int thread_level_ = 0;
  bool owns_mpi_ = false;
  std::atomic<bool> abandoned_{false};
};

}  // namespace horon::core

// The process-wide session: start, who am I, stop. Shared by the LibTorch bindings and by programs
// without LibTorch.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/base/statistics.h"
#include "horon/core/base/version.h"
#include "horon/ops/session/barrier.h"  // barrier(), barrier_async()
#include "horon/ops/session/process_set.h"

namespace horon {

struct InitOptions {
  // An MPI communicator of the caller's (a pointer to the MPI_Comm), which is duplicated. For jobs
  // where only some ranks train: all of its ranks call init(), and no others. Null: MPI_COMM_WORLD.
  // If MPI is not initialised, init() does so and shutdown() finalises it. Otherwise the caller has
  // asked for MPI_THREAD_MULTIPLE, and finalises after shutdown(). In both cases MPI_Finalize() may
  // be called in the place of shutdown(): it shuts a session down. MPI_THREAD_SERIALIZED suffices
  // if the caller makes no call of MPI while the session lasts.
  const void* mpi_comm = nullptr;
  // Knobs, as {"HORON_BUCKET_BYTES", "4194304"}; they win over the environment.
  std::map<std::string, std::string> set = {};
  // Made at once, as add_process_set() does; process_sets() gives them, in this order, behind the
  // set of all ranks. The order of the ranks within a set means nothing.
  std::vector<std::vector<int>> process_sets = {};
};

// Starts the session. Collective over all ranks; a rank that waits for others warns as for a
// collective (HORON_STALL_WARN_S, HORON_STALL_ABORT_S). A second call while it runs does nothing;
// after shutdown() it starts anew if the caller owns MPI, else it is an error (MPI can't be
// initialised twice). If any rank has an error, every rank throws it and no session is left; but if
// some ranks never come, only those that wait throw. Throws Error(Config), and others that say what
// failed. Leave `headers` at its default: the version that the program was compiled with, which
// must fit the library. A LibTorch program calls horon::init() (torch_bindings/session.h), which
// also divides the cores.
void init_session(const InitOptions& options = {}, std::string_view headers = kHeaderVersion);
bool is_initialized();

// These throw Error(NotInitialized) outside init() .. shutdown(). A child of fork() has its
// parent's.
int rank();
int size();
int local_rank();
int local_size();
int cross_rank();
int cross_size();
// Whether all hosts have the same number of ranks; the same answer on every rank.
bool is_homogeneous();
// This process's rank in the session that runs or in the last one, also after a failed init() or
// after shutdown(). With it, one rank can print an error that all ranks have thrown. -1 if there
// has been no session.
int last_rank();

// What this rank has done since init(), and what is under way: collectives, how they were started,
// control messages (core/base/statistics.h). A training step whose collectives are all frozen adds
// nothing to control_messages_sent and control_messages_received. Any thread; sends nothing.
Statistics statistics();

// Begins to record a timeline, in files like those of HORON_TIMELINE=`path`, and ends the current
// one. Any thread, at any time; sends nothing: each rank that calls it records what it does itself.
// Throws Error(Config) if the file can't be written; then the current one goes on.
void start_timeline(const std::string& path);
// Ends the timeline; its file is complete. Does nothing if there is none.
void stop_timeline();

// "This rank has no more data": returns when every rank has called it, with the rank that came
// last. Until then this rank takes part in the others' allreduces and allgathers without data: Sum
// and Average see zeros, and Average divides by the ranks that have not joined; Min, Max and
// Product do not change; Allgather gets no rows; a barrier does not wait for it. A collective that
// needs every rank (alltoall, reduce, reducescatter, gather, scatter, a broadcast whose root has
// joined) fails on the others with its name. Throws Error.
int join(const ProcessSet& process_set = {});

// Every rank should call it. Says that this rank is done, serves the others until all are done,
// then ends the background thread (and MPI, if init() began it). Called at exit if the program does
// not. Never throws; a second call does nothing.
void shutdown();

// What this build is, one fact a line: {"mpi", "Open MPI 4.1.4, ..."}. Works without a session.
struct BuildFact {
  std::string name;
  std::string value;
};
std::vector<BuildFact> build_facts();

}  // namespace horon

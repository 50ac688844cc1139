// exit_program MODE: uses LibTorch and Horon on all ranks, then ends the process in one of many
// ways. The test looks at the exit code and the time; a crash or a hang on the way out is what it
// is after.
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include <ATen/ATen.h>
#include <mpi.h>

#include "horon/tests/torch_bindings/exit_programs/end_of_mpi.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/session.h"

namespace {

void work() {
  for (int i = 0; i < 20; ++i) {
    const at::Tensor sum = horon::allreduce(at::ones({1000}), {.op = horon::ReduceOp::Sum});
    if (sum[7].item<double>() != horon::size()) std::abort();
  }
}

void start_mpi() {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
}

// Lives longer than main(): its destructor runs in the middle of the exit.
struct Static {
  at::Tensor tensor;
  horon::Handle handle;
} kept;

// One set is removed, another one stays, and both while their collectives are under way.
void leave_with_sets() {
  const horon::ProcessSet removed = horon::add_process_set({0, 1});
  const horon::ProcessSet stays = horon::add_process_set({0, 1});
  (void)horon::add_process_set({0});
  for (int i = 0; i < 50; ++i) {
    (void)horon::allreduce_async(at::ones({100000}), {.process_set = removed});
    kept.handle = horon::allreduce_async(at::ones({100000}), {.process_set = stays});
  }
  horon::remove_process_set(removed);
}

int run(const std::string& mode) {
  if (mode == "never_started") return 0;
  const bool own_mpi = mode.starts_with("mpi_");
  if (own_mpi) start_mpi();
  horon::init();
  if (mode == "init_twice") horon::init();
  work();
  if (mode == "return" || mode == "init_twice") return 0;
  if (mode == "return_7") return 7;
  if (mode == "exit") std::exit(0);
  if (mode == "exit_3") std::exit(3);
  if (mode == "caught") throw std::runtime_error("caught in main");
  if (mode == "shutdown_twice") {
    horon::shutdown();
    horon::shutdown();
    return at::ones({5}).sum().item<int>() - 5;
  }
  if (mode == "in_flight") {
    // Every rank leaves while its collectives are under way.
    for (int i = 0; i < 50; ++i) kept.handle = horon::allreduce_async(at::ones({100000}));
    return 0;
  }
  if (mode == "sets") {
    leave_with_sets();
    return 0;
  }
  if (mode == "lonely") {
    // Something that only this rank has submitted.
    kept.tensor = at::ones({10});
    kept.handle =
        horon::allreduce_async_(kept.tensor, {.name = "of " + std::to_string(horon::rank())});
    return 0;
  }
  if (mode == "one_leaves") {
    // Rank 0 waits for ranks that have returned from main: an error that says so, and no hang.
    if (horon::rank() != 0 || horon::size() == 1) return 0;
    try {
      horon::allreduce(at::ones({3}), {.name = "waits"});
    } catch (const horon::Error& error) {
      return error.code() == horon::ErrorCode::RankLeft ? 0 : 1;
    }
    return 1;
  }
  if (mode == "mpi_shutdown_finalize") {
    horon::shutdown();
    MPI_Finalize();
    return 0;
  }
  // The second one ends the MPI that init() has begun.
  if (mode == "mpi_finalize_without_shutdown" || mode == "finalize_of_own_mpi") {
    MPI_Finalize();
    return 0;
  }
  if (mode == "mpi_finalize_atexit") {
    // Handlers run in the reverse order of their registration: Horon's ran first.
    return 0;
  }
  std::fprintf(stderr, "unknown mode %s\n", mode.c_str());
  return 99;
}

}  // namespace

int main(int argc, char** argv) {
  horon::testing_support::require_end_of_mpi();
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "mpi_finalize_atexit") {
    std::atexit([] { MPI_Finalize(); });
  }
  if (mode == "uncaught") {
    horon::init();
    work();
    throw std::runtime_error("nobody catches this");
  }
  try {
    return run(mode);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}

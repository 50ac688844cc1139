#include "horon/core/bootstrap/mpi_library.h"

#include <array>
#include <atomic>

#include <mpi.h>

#include "horon/core/base/log.h"
#include "horon/core/bootstrap/launch.h"
#include "horon/core/bootstrap/mpi_error.h"

namespace horon::core {
namespace {

void (*finalize_action)() = nullptr;
// MPI says "finalised" only after the callbacks.
std::atomic<bool> finalize_has_begun{false};

// The processes that MPI knows of, whatever communicator the program gives.
int world_size() {
  int size = 0;
  check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &size), "MPI_Comm_size");
  return size;
}

extern "C" int horon_on_finalize(MPI_Comm, int, void*, void*) {
  finalize_has_begun = true;
  finalize_action();
  return MPI_SUCCESS;
}

}  // namespace

MpiLibrary::MpiLibrary() : thread_level_(MPI_THREAD_SINGLE) {
  int initialized = 0;
  int finalized = 0;
  check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
  check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
  if (finalized != 0) {
    throw Error(ErrorCode::Config,
                "MPI has been finalised and can't be initialised twice in a process: call "
                "MPI_Init_thread before horon::init() and MPI_Finalize after the last "
                "horon::shutdown()");
  }
  if (initialized == 0) {
    // Open MPI may end the process in MPI_Init_thread().
    if (const std::string fault = missing_pmix(version()); !fault.empty()) {
      log(LogLevel::Warn, fault);
    }
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_),
              "MPI_Init_thread");
    owns_mpi_ = true;
  } else {
    check_mpi(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
  }
  warn_of_launch(world_size());
}

MpiLibrary::~MpiLibrary() {
  if (owns_mpi_ && usable() && !finalize_has_begun) MPI_Finalize();
}

std::optional<Error> MpiLibrary::thread_fault() const {
  if (thread_level_ >= MPI_THREAD_SERIALIZED) return std::nullopt;
  if (owns_mpi_) {
    return Error(ErrorCode::Config,
                 "this MPI library was built without support for threads: Horon needs at least "
                 "MPI_THREAD_SERIALIZED");
  }
  return Error(
      ErrorCode::Config,
      "the program has initialised MPI for one thread only, but Horon calls it from its "
      "own thread: call MPI_Init_thread with MPI_THREAD_MULTIPLE, before libraries that "
      "would initialise MPI themselves (MPI_THREAD_SERIALIZED will do if the program makes "
      "no call of MPI between horon::init() and horon::shutdown()), or let Horon "
      "initialise MPI");
}

bool MpiLibrary::allows_threads_at_once() const { return thread_level_ >= MPI_THREAD_MULTIPLE; }

std::string_view MpiLibrary::remark_on_launch() { return launch_remark(world_size()); }

std::string MpiLibrary::version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;  // Open MPI counts the zero at the end
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  text.back() = '\0';
  const std::string version(text.data());
  return version.substr(0, version.find_first_of('\n'));
}

// MPI promises to delete the attributes of MPI_COMM_SELF before anything else in MPI_Finalize.
void MpiLibrary::at_finalize(void (*action)()) {
  static bool is_set = false;
  finalize_action = action;
  if (is_set) return;
  int key = MPI_KEYVAL_INVALID;
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, horon_on_finalize, &key, nullptr),
            "MPI_Comm_create_keyval");
  check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  is_set = true;
}

bool MpiLibrary::usable() const noexcept {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return !abandoned_ && finalized == 0;
}

}  // namespace horon::core

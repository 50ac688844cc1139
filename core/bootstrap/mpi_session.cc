#include "horon/core/bootstrap/mpi_session.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <sstream>

#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/bootstrap/mpi_error.h"

namespace horon::core {

namespace {

constexpr const char* kThreadCure =
    "call MPI_Init_thread with MPI_THREAD_MULTIPLE (MPI_THREAD_SERIALIZED if your program and "
    "Horon never call MPI at the same time), or let Horon initialise MPI";

MPI_Comm duplicate(MPI_Comm parent) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(parent, &copy), "MPI_Comm_dup");
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return copy;
}

void (*finalize_action)() = nullptr;

extern "C" int horon_on_finalize(MPI_Comm, int, void*, void*) {
  finalize_action();
  return MPI_SUCCESS;
}

// The first line in which two texts differ, once for each.
std::pair<std::string, std::string> first_different_line(const std::string& a,
                                                         const std::string& b) {
  std::istringstream left(a);
  std::istringstream right(b);
  std::string left_line;
  std::string right_line;
  do {
    left_line.clear();
    right_line.clear();
    std::getline(left, left_line);
    std::getline(right, right_line);
  } while (left_line == right_line && (left || right));
  return {left_line, right_line};
}

}  // namespace

MpiSession::MpiSession(const void* communicator) {
  start_mpi();
  const MPI_Comm parent =
      communicator == nullptr ? MPI_COMM_WORLD : *static_cast<const MPI_Comm*>(communicator);
  communicator_ = duplicate(parent);
  find_topology();
  if (topology_.size == 1) {
    log(LogLevel::Info,
        "this job has one rank: no launcher (mpirun, srun) started it, or with one process");
  }
}

// MPI promises to delete the attributes of MPI_COMM_SELF before anything else in MPI_Finalize.
void MpiSession::at_finalize(void (*action)()) {
  finalize_action = action;
  int key = MPI_KEYVAL_INVALID;
  check_mpi(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, horon_on_finalize, &key, nullptr),
            "MPI_Comm_create_keyval");
  check_mpi(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
}

void MpiSession::start_mpi() {
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
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &thread_level_),
              "MPI_Init_thread");
    owns_mpi_ = true;
  } else {
    check_mpi(MPI_Query_thread(&thread_level_), "MPI_Query_thread");
  }
  if (thread_level_ >= MPI_THREAD_SERIALIZED) return;
  if (owns_mpi_) {
    MPI_Finalize();
    throw Error(ErrorCode::Config,
                "this MPI library was built without support for threads: Horon needs at least "
                "MPI_THREAD_SERIALIZED");
  }
  throw Error(ErrorCode::Config,
              concat("the program has initialised MPI for one thread only, but Horon calls it from "
                     "its own thread: ",
                     kThreadCure));
}

// A host is what MPI can share memory in; its lowest rank is its name.
void MpiSession::find_topology() {
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_rank(communicator_, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(communicator_, &size), "MPI_Comm_size");
  check_mpi(MPI_Comm_split_type(communicator_, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL,
                                &host_communicator_),
            "MPI_Comm_split_type");
  check_mpi(MPI_Comm_set_errhandler(host_communicator_, MPI_ERRORS_RETURN),
            "MPI_Comm_set_errhandler");
  int lowest_rank = rank;
  check_mpi(MPI_Bcast(&lowest_rank, 1, MPI_INT, 0, host_communicator_), "MPI_Bcast");
  std::vector<int> lowest_ranks(static_cast<size_t>(size));
  check_mpi(MPI_Allgather(&lowest_rank, 1, MPI_INT, lowest_ranks.data(), 1, MPI_INT, communicator_),
            "MPI_Allgather");
  topology_ = make_topology(rank, lowest_ranks);
}

MpiSession::~MpiSession() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (abandoned_ || finalized != 0) return;
  if (host_communicator_ != MPI_COMM_NULL) MPI_Comm_free(&host_communicator_);
  if (communicator_ != MPI_COMM_NULL) MPI_Comm_free(&communicator_);
  if (owns_mpi_) MPI_Finalize();
}

std::string MpiSession::thread_level() const {
  return thread_level_ >= MPI_THREAD_MULTIPLE ? "multiple" : "serialized";
}

std::string MpiSession::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check_mpi(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string version(text.data(), static_cast<size_t>(length));
  return version.substr(0, version.find_first_of('\n'));
}

namespace {

std::vector<std::byte> allgather(std::span<const std::byte> mine, MPI_Comm communicator,
                                 int count) {
  std::vector<std::byte> all(mine.size() * static_cast<size_t>(count));
  const int bytes = static_cast<int>(mine.size());
  check_mpi(MPI_Allgather(mine.data(), bytes, MPI_BYTE, all.data(), bytes, MPI_BYTE, communicator),
            "MPI_Allgather");
  return all;
}

}  // namespace

LocalGroup::Exchange MpiSession::host_exchange() const {
  return [this](std::span<const std::byte> mine) {
    return allgather(mine, host_communicator_, topology_.local_size);
  };
}

std::vector<std::byte> MpiSession::gather(std::span<const std::byte> mine) const {
  return allgather(mine, communicator_, topology_.size);
}

std::vector<std::string> MpiSession::gather_text(const std::string& mine) const {
  const auto size = static_cast<size_t>(topology_.size);
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(size);
  check_mpi(MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, communicator_),
            "MPI_Allgather");
  std::vector<int> begins(size);
  std::exclusive_scan(lengths.begin(), lengths.end(), begins.begin(), 0);
  std::string all(static_cast<size_t>(begins.back() + lengths.back()), ' ');
  check_mpi(MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                           MPI_CHAR, communicator_),
            "MPI_Allgatherv");
  std::vector<std::string> texts;
  for (size_t i = 0; i < size; ++i) {
    texts.push_back(all.substr(static_cast<size_t>(begins[i]), static_cast<size_t>(lengths[i])));
  }
  return texts;
}

void MpiSession::broadcast_text(std::string& text, int root) const {
  auto length = static_cast<int>(text.size());
  check_mpi(MPI_Bcast(&length, 1, MPI_INT, root, communicator_), "MPI_Bcast");
  text.resize(static_cast<size_t>(length));
  check_mpi(MPI_Bcast(text.data(), length, MPI_CHAR, root, communicator_), "MPI_Bcast");
}

void MpiSession::require_same(const std::string& what, const std::string& text) const {
  std::string first = text;
  broadcast_text(first, 0);
  const int mine = first == text ? topology_.size : topology_.rank;
  int lowest = 0;
  check_mpi(MPI_Allreduce(&mine, &lowest, 1, MPI_INT, MPI_MIN, communicator_), "MPI_Allreduce");
  if (lowest == topology_.size) return;
  std::string different = text;
  broadcast_text(different, lowest);
  const auto [theirs, other] = first_different_line(first, different);
  throw Error(ErrorCode::Config, concat(what, " differs between ranks: rank 0 has '", theirs,
                                        "', rank ", lowest, " has '", other, "'"));
}

}  // namespace horon::core

#include "horon/bench/mpi_algorithms.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>

#include <mpi.h>

#include "horon/core/base/text.h"

namespace horon::bench {
namespace {

constexpr int64_t kKiB = 1 << 10;

// Open MPI's names for the collectives.
std::vector<std::string> collectives_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::Allreduce:
      return {"allreduce"};
    case CollectiveKind::Broadcast:
      return {"bcast"};
    case CollectiveKind::Allgather:
      return {"allgather"};
    case CollectiveKind::Reducescatter:
      return {"reduce_scatter_block", "reduce_scatter"};
    case CollectiveKind::Alltoall:
      return {"alltoall"};
    case CollectiveKind::Gather:
      return {"gather"};
    case CollectiveKind::Scatter:
      return {"scatter"};
    case CollectiveKind::Barrier:
      return {"barrier"};
  }
  return {};
}

// These cut a message into segments of a length that the user may choose.
bool has_segments(const std::string& algorithm) {
  constexpr std::array segmented = {"segmented_ring", "chain",    "pipeline", "split_binary_tree",
                                    "binary_tree",    "binomial", "knomial"};
  return std::find(segmented.begin(), segmented.end(), algorithm) != segmented.end();
}

// A variable of the MPI library, through MPI's tools interface.
class Variable {
 public:
  // Nothing if the library has none of that name, or only for reading.
  static std::optional<Variable> find(const std::string& name) {
    int index = 0;
    if (MPI_T_cvar_get_index(name.c_str(), &index) != MPI_SUCCESS) return {};
    Variable variable;
    int verbosity = 0;
    int binding = 0;
    int scope = 0;
    MPI_Datatype type = MPI_DATATYPE_NULL;
    if (MPI_T_cvar_get_info(index, nullptr, nullptr, &verbosity, &type, &variable.names_, nullptr,
                            nullptr, &binding, &scope) != MPI_SUCCESS) {
      return {};
    }
    int count = 0;
    if (MPI_T_cvar_handle_alloc(index, nullptr, &variable.handle_, &count) != MPI_SUCCESS) {
      return {};
    }
    if (!variable.set(variable.get())) return {};
    return variable;
  }

  bool set(int value) { return MPI_T_cvar_write(handle_, &value) == MPI_SUCCESS; }
  int get() const {
    int value = 0;
    MPI_T_cvar_read(handle_, &value);
    return value;
  }

  struct Value {
    int number;
    std::string name;
  };
  std::vector<Value> values() const {
    int count = 0;
    std::array<char, 256> text{};
    auto length = static_cast<int>(text.size());
    std::vector<Value> result;
    if (MPI_T_enum_get_info(names_, &count, text.data(), &length) != MPI_SUCCESS) return result;
    for (int i = 0; i < count; ++i) {
      int number = 0;
      length = static_cast<int>(text.size());
      MPI_T_enum_get_item(names_, i, &number, text.data(), &length);
      result.push_back({number, text.data()});
    }
    return result;
  }

 private:
  MPI_T_cvar_handle handle_ = MPI_T_CVAR_HANDLE_NULL;
  MPI_T_enum names_ = MPI_T_ENUM_NULL;
};

}  // namespace

void MpiAlgorithms::allow() { (void)setenv("OMPI_MCA_coll_tuned_use_dynamic_rules", "1", 1); }

MpiAlgorithms::MpiAlgorithms(CollectiveKind kind, MpiPeer& mpi) : mpi_(mpi) {
  int provided = 0;
  MPI_T_init_thread(MPI_THREAD_SINGLE, &provided);
  algorithms_.push_back({"default", 0, &mpi});
  for (const std::string& collective : collectives_of(kind)) {
    add_all_of(collective, collective == "reduce_scatter");
  }
  if (algorithms_.size() == 1) unavailable_ = "this MPI has no setting coll_tuned_..._algorithm";
  MPI_T_finalize();
}

void MpiAlgorithms::add_all_of(const std::string& collective, bool with_counts) {
  auto algorithm = Variable::find("coll_tuned_" + collective + "_algorithm");
  auto segment = Variable::find("coll_tuned_" + collective + "_algorithm_segmentsize");
  if (!algorithm) return;
  for (const auto& [number, name] : algorithm->values()) {
    // With 0 Open MPI chooses by itself. Some algorithms are for two ranks only.
    if (number == 0 || (name == "two_proc" && mpi_.size() != 2)) continue;
    std::vector<int64_t> segments = {0};
    if (segment && has_segments(name)) segments.insert(segments.end(), {64 * kKiB, 1024 * kKiB});
    for (const int64_t bytes : segments) {
      algorithm->set(number);
      if (segment) segment->set(static_cast<int>(bytes));
      peers_.push_back(mpi_.duplicate());
      if (with_counts) peers_.back()->use_reduce_scatter_with_counts();
      const std::string cut = bytes == 0 ? "" : core::concat(" ", bytes / kKiB, " KiB");
      algorithms_.push_back({(with_counts ? "counts " : "") + name + cut,
                             bytes == 0 ? 0 : 2 * bytes, peers_.back().get()});
    }
  }
  algorithm->set(0);
  if (segment) segment->set(0);
}

MpiAlgorithms::Choice MpiAlgorithms::choose(int64_t bytes,
                                            const std::function<double(Peer&)>& time) {
  constexpr int kTries = 3;
  constexpr double kNear = 1.5;
  constexpr double kFarBehind = 2;
  std::vector<Algorithm*> candidates;
  for (Algorithm& one : algorithms_) {
    if (!one.left_behind && bytes >= one.bytes_min) candidates.push_back(&one);
  }
  const auto faster = [](const Algorithm* a, const Algorithm* b) {
    return a->least_s < b->least_s;
  };
  double best_s = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    for (Algorithm* one : candidates) {
      if (attempt > 0 && one->least_s > kNear * best_s) continue;
      const double seconds = time(*one->peer);
      one->least_s = attempt == 0 ? seconds : std::min(one->least_s, seconds);
    }
    best_s = (*std::min_element(candidates.begin(), candidates.end(), faster))->least_s;
  }
  for (Algorithm* one : candidates) {
    if (bytes >= 1024 * kKiB && one->least_s > kFarBehind * best_s) one->left_behind = true;
  }
  const Algorithm* best = *std::min_element(candidates.begin(), candidates.end(), faster);
  return {best->peer, best->name};
}

}  // namespace horon::bench

// The fault matrix without LibTorch: see tests/support/fault_job.h.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <mpi.h>

#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/fault_job.h"

namespace {

using namespace std::chrono_literals;

constexpr int kSteps = 400;
constexpr int kStepOfFault = 20;

const horon::testing_support::FaultJob* job = nullptr;
bool fault_is_due_in_mpi = false;

// The data is large enough that ranks are also caught inside a collective.
constexpr int64_t kGradientCount = 1 << 18;

horon::core::Submission allreduce_of(std::byte* bytes, std::shared_ptr<void> owner) {
  static const auto spec = [] {
    auto out = std::make_shared<horon::core::EntrySpec>();
    out->reduce_op = horon::ReduceOp::Average;
    out->parts = {{"gradient", {kGradientCount}}};
    return out;
  }();
  horon::core::Submission submission;
  submission.name = "gradient";
  submission.spec = spec;
  submission.memory = {{bytes, bytes, kGradientCount}};
  submission.keep_alive = std::move(owner);
  return submission;
}

std::shared_ptr<horon::core::HandleState> start_allreduce() {
  const auto data = std::make_shared<std::vector<float>>(kGradientCount, 1.0F);
  auto* const bytes = reinterpret_cast<std::byte*>(data->data());
  return horon::ops::runtime().submit(allreduce_of(bytes, data));
}

void allreduce() { (void)start_allreduce()->get(); }

// No rank has anything to do when the fault happens; then the others go on.
void at_rest() {
  std::this_thread::sleep_for(300ms);
  if (job->is_guilty()) job->do_fault();
  while (!job->fault_was_done()) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(300ms);
  allreduce();
}

void in_allreduce() {
  for (int step = 0; step < kSteps; ++step) {
    const auto handle = start_allreduce();
    if (job->is_guilty() && step == kStepOfFault) job->do_fault();
    (void)handle->get();
  }
}

// Holds up its rank's collectives until the fault has been done, and a while longer.
class AfterTheFault final : public horon::core::Event {
 public:
  bool happened() override {
    wait();
    return true;
  }
  void wait() override {
    while (!job->fault_was_done()) std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(300ms);
  }
};

// Each step uses memory that the other ranks have never mapped. At the fault the guilty rank has
// published the address of its memory; the others want to map it when the rank is gone.
void in_allreduce_of_fresh_memory() {
  std::vector<std::shared_ptr<std::byte>> all_memory;  // kept, so that none is given out again
  for (int step = 0; step <= kStepOfFault; ++step) {
    all_memory.push_back(horon::ops::allocate_host(kGradientCount * sizeof(float)));
    auto submission = allreduce_of(all_memory.back().get(), all_memory.back());
    const bool is_last = step == kStepOfFault;
    if (is_last && !job->is_guilty()) submission.ready = std::make_unique<AfterTheFault>();
    const auto handle = horon::ops::runtime().submit(std::move(submission));
    if (is_last && job->is_guilty()) {
      std::this_thread::sleep_for(300ms);
      job->do_fault();
    }
    (void)handle->get();
  }
  allreduce();  // a rank that had published its memory and can still be read ends no allreduce
}

enum class Memory : uint8_t { Private, Mixed };

// Mixed: the other ranks can map only the memory of ranks 0 and 2.
std::shared_ptr<std::byte> memory_of_rank(int64_t count, Memory kind) {
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  if (kind == Memory::Mixed && horon::rank() != 1) return horon::ops::allocate_host(bytes);
  return {new std::byte[bytes](), std::default_delete<std::byte[]>()};
}

// Starts a collective of 1.5 MiB per rank. If it has a root, each rank is the root in turn, and
// rank 0 in the step of the fault: so one of the guilty ranks is the root, and the other is not.
std::shared_ptr<horon::core::HandleState> start_blocks(horon::CollectiveKind kind, Memory memory,
                                                       int step) {
  using horon::CollectiveKind;
  constexpr int64_t kLongest = 3 << 17;
  const int root = horon::core::has_root(kind) ? (step + 1) % 3 : 0;
  const bool divides = kind == CollectiveKind::Alltoall ||
                       (kind == CollectiveKind::Scatter && horon::rank() == root);
  const int64_t count = kind == CollectiveKind::Scatter && !divides ? 0 : kLongest;
  const auto spec = std::make_shared<horon::core::EntrySpec>();
  spec->kind = kind;
  spec->root = root;
  spec->parts = {{"blocks", {count}}};
  const std::shared_ptr<std::byte> data = memory_of_rank(4 * kLongest, memory);
  std::byte* const bytes = data.get();
  std::byte* const result = bytes + kLongest * sizeof(float);
  const bool in_place = kind == CollectiveKind::Broadcast;
  horon::core::Submission submission;
  submission.name = "blocks";
  submission.spec = spec;
  submission.memory = {{bytes, in_place ? bytes : nullptr, count}};
  if (divides) submission.splits = {kLongest / 3, kLongest / 3, kLongest / 3};
  if (!in_place) {
    submission.allocate_output = [data, result](size_t, int64_t, horon::core::MemoryQueue&) {
      return result;
    };
  }
  submission.keep_alive = data;
  return horon::ops::runtime().submit(std::move(submission));
}

void in_blocks(horon::CollectiveKind kind, Memory memory) {
  for (int step = 0; step < kSteps; ++step) {
    const auto handle = start_blocks(kind, memory, step);
    if (job->is_guilty() && step == kStepOfFault) job->do_fault();
    (void)handle->get();
  }
}

// The guilty rank waits for the others, which come when it has gone.
void blocked() {
  if (job->is_guilty()) {
    job->do_fault();
  } else {
    while (!job->guilty_has_ended()) std::this_thread::sleep_for(10ms);
  }
  allreduce();
}

void in_join() {
  if (job->is_guilty()) {
    std::this_thread::sleep_for(300ms);
    job->do_fault();
  }
  (void)horon::join();
  allreduce();  // a rank that has shut down ends a join
}

// A rank that dies or stops does so inside MPI's own call.
void while_a_set_is_made() {
  const bool in_mpi = job->fault() == "kill" || job->fault() == "stop";
  fault_is_due_in_mpi = job->is_guilty() && in_mpi;
  if (job->is_guilty() && !in_mpi) job->do_fault();
  (void)horon::add_process_set({0, 1, 2});
}

void work() {
  for (int i = 0; i < 3; ++i) allreduce();
  horon::barrier();
  if (job->situation() == "rest") at_rest();
  if (job->situation() == "allreduce") in_allreduce();
  if (job->situation() == "fresh") in_allreduce_of_fresh_memory();
  using Kind = horon::CollectiveKind;
  for (const auto kind : {Kind::Alltoall, Kind::Broadcast, Kind::Allgather, Kind::Reducescatter,
                          Kind::Gather, Kind::Scatter}) {
    const std::string name(horon::to_string(kind));
    if (job->situation() == name) in_blocks(kind, Memory::Private);
    if (job->situation() == "mixed_" + name) in_blocks(kind, Memory::Mixed);
  }
  if (job->situation() == "blocked") blocked();
  if (job->situation() == "join") in_join();
  if (job->situation() == "set") while_a_set_is_made();
}

}  // namespace

extern "C" int MPI_Comm_create_group(MPI_Comm parent, MPI_Group group, int tag, MPI_Comm* made) {
  if (fault_is_due_in_mpi) job->do_fault();
  return PMPI_Comm_create_group(parent, group, tag, made);
}

int main(int argc, char** argv) {
  horon::init_session();
  const horon::testing_support::FaultJob here(argc, argv);
  job = &here;
  return here.run(work);
}

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
std::shared_ptr<horon::core::HandleState> start_allreduce() {
  constexpr int64_t kCount = 1 << 18;
  static const auto spec = [] {
    auto out = std::make_shared<horon::core::EntrySpec>();
    out->reduce_op = horon::ReduceOp::Average;
    out->parts = {{"gradient", {kCount}}};
    return out;
  }();
  const auto data = std::make_shared<std::vector<float>>(kCount, 1.0F);
  auto* const bytes = reinterpret_cast<std::byte*>(data->data());
  horon::core::Submission submission;
  submission.name = "gradient";
  submission.spec = spec;
  submission.memory = {{bytes, bytes, kCount}};
  submission.keep_alive = data;
  return horon::ops::runtime().submit(std::move(submission));
}

void allreduce() { (void)start_allreduce()->get(); }

// Blocks of half a MiB, between memory that the others can't map.
std::shared_ptr<horon::core::HandleState> start_alltoall() {
  constexpr int64_t kCount = 3 << 17;
  static const auto spec = [] {
    auto out = std::make_shared<horon::core::EntrySpec>();
    out->kind = horon::CollectiveKind::Alltoall;
    out->parts = {{"blocks", {kCount}}};
    return out;
  }();
  const auto data = std::make_shared<std::vector<float>>(2 * kCount, 1.0F);
  auto* const bytes = reinterpret_cast<std::byte*>(data->data());
  horon::core::Submission submission;
  submission.name = "blocks";
  submission.spec = spec;
  submission.memory = {{bytes, nullptr, kCount}};
  submission.splits = {kCount / 3, kCount / 3, kCount / 3};
  submission.allocate_output = [data](size_t, int64_t) {
    return reinterpret_cast<std::byte*>(data->data() + kCount);
  };
  submission.keep_alive = data;
  return horon::ops::runtime().submit(std::move(submission));
}

// Nobody has anything to do when it happens; then the others go on.
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

void in_alltoall() {
  for (int step = 0; step < kSteps; ++step) {
    const auto handle = start_alltoall();
    if (job->is_guilty() && step == kStepOfFault) job->do_fault();
    (void)handle->get();
  }
}

// The guilty rank waits for the others, who come when it has gone.
void blocked() {
  if (job->is_guilty()) {
    job->do_fault();
  } else {
    while (!job->fault_was_done()) std::this_thread::sleep_for(10ms);
    std::this_thread::sleep_for(500ms);
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
  if (job->situation() == "alltoall") in_alltoall();
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

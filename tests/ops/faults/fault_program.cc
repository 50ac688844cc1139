// A job of which one rank goes wrong: fault_matrix.py runs it and checks what the others say.
//
//   fault_program SITUATION FAULT RANK FOLDER
//
// Every rank that lives on writes what it got to FOLDER/outcome.N: the text of its error.
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <mpi.h>

#include "horon/core/base/error.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace {

using namespace std::chrono_literals;

constexpr int kSteps = 400;
constexpr int kStepOfFault = 20;

std::string fault;
std::filesystem::path folder;
bool is_guilty = false;
bool fault_is_due_in_mpi = false;

void write(const std::string& name, const std::string& text) {
  const std::filesystem::path temporary = folder / (name + ".tmp");
  std::ofstream(temporary) << text;
  std::filesystem::rename(temporary, folder / name);
}

void do_fault() {
  write("fault", "");
  if (fault == "kill") std::raise(SIGKILL);
  if (fault == "stop") std::raise(SIGSTOP);
  if (fault == "exit") std::exit(3);
  if (fault == "throw") throw std::logic_error("thrown on purpose");
  if (fault == "leave") horon::shutdown();
  if (fault == "stall") std::this_thread::sleep_for(1h);
}

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

// Nobody has anything to do when it happens; then the others go on.
void at_rest() {
  std::this_thread::sleep_for(300ms);
  if (is_guilty) do_fault();
  while (!std::filesystem::exists(folder / "fault")) std::this_thread::sleep_for(10ms);
  std::this_thread::sleep_for(300ms);
  allreduce();
}

void in_allreduce() {
  for (int step = 0; step < kSteps; ++step) {
    const auto handle = start_allreduce();
    if (is_guilty && step == kStepOfFault) do_fault();
    (void)handle->get();
  }
}

void in_join() {
  if (is_guilty) {
    std::this_thread::sleep_for(300ms);
    do_fault();
  }
  (void)horon::join();
  allreduce();  // a rank that has shut down ends a join
}

// A rank that dies or stops does so inside MPI's own call.
void while_a_set_is_made() {
  fault_is_due_in_mpi = is_guilty && (fault == "kill" || fault == "stop");
  if (is_guilty && !fault_is_due_in_mpi) do_fault();
  (void)horon::add_process_set({0, 1, 2});
}

std::string outcome_of(const std::string& situation) {
  try {
    for (int i = 0; i < 3; ++i) allreduce();
    horon::barrier();
    if (situation == "rest") at_rest();
    if (situation == "allreduce") in_allreduce();
    if (situation == "join") in_join();
    if (situation == "set") while_a_set_is_made();
  } catch (const horon::Error& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

extern "C" int MPI_Comm_create_group(MPI_Comm parent, MPI_Group group, int tag, MPI_Comm* made) {
  if (fault_is_due_in_mpi) do_fault();
  return PMPI_Comm_create_group(parent, group, tag, made);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string situation = argv[1];
  fault = argv[2];
  folder = argv[4];
  horon::init_session();
  is_guilty = horon::rank() == std::atoi(argv[3]);
  write("pid." + std::to_string(horon::rank()), std::to_string(getpid()));
  const std::string outcome = outcome_of(situation);
  write("outcome." + std::to_string(horon::last_rank()), outcome);
  return outcome == "no error" ? 0 : 1;
}

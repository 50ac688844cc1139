// A job in which one rank does something terrible in the middle of a loop of collectives.
//
//   fault_program kill|freeze|exit|leave|throw|stall RANK
//
// The others print the error that they get as "survivor: ..." and exit with 1.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"

namespace {

constexpr int kSteps = 2000;
constexpr int kStepOfFault = 50;

void do_fault(const std::string& fault) {
  if (fault == "kill") std::raise(SIGKILL);
  if (fault == "freeze") std::raise(SIGSTOP);
  if (fault == "exit") std::exit(3);
  if (fault == "leave") horon::shutdown();
  if (fault == "throw") throw std::runtime_error("thrown on purpose");
  if (fault == "stall") std::this_thread::sleep_for(std::chrono::hours(1));
}

void allreduce(std::vector<float>& data, const std::shared_ptr<horon::core::EntrySpec>& spec) {
  horon::core::Submission submission;
  submission.name = "gradient";
  submission.spec = spec;
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  submission.memory = {{bytes, bytes, static_cast<int64_t>(data.size())}};
  const auto handle = horon::ops::runtime().submit(std::move(submission));
  handle->wait(std::nullopt);
  if (handle->outcome().error) throw horon::Error(*handle->outcome().error);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  horon::init_session();
  const bool guilty = horon::rank() == std::atoi(argv[2]);
  // Large enough that ranks are also caught inside a collective.
  std::vector<float> data(size_t{1} << 18, 1.0F);
  auto spec = std::make_shared<horon::core::EntrySpec>();
  spec->reduce_op = horon::ReduceOp::Average;
  spec->parts = {{"gradient", {static_cast<int64_t>(data.size())}}};
  try {
    for (int step = 0; step < kSteps; ++step) {
      if (guilty && step == kStepOfFault) do_fault(argv[1]);
      allreduce(data, spec);
    }
  } catch (const horon::Error& error) {
    std::printf("survivor: %s\n", error.what());
    std::fflush(stdout);
    return 1;
  }
  return 0;
}

#include "horon/tests/support/fault_job.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <sys/time.h>
#include <thread>
#include <unistd.h>

#include "horon/core/base/error.h"
#include "horon/ops/session/session.h"

namespace horon::testing_support {

FaultJob::FaultJob(int argc, char** argv) {
  if (argc != 5) throw std::invalid_argument("arguments: SITUATION FAULT RANK FOLDER");
  situation_ = argv[1];
  fault_ = argv[2];
  guilty_ = argv[3];
  is_guilty_ = rank() == std::stoi(guilty_);
  folder_ = argv[4];
  write("pid." + std::to_string(rank()), std::to_string(getpid()));
}

void FaultJob::write(const std::string& name, const std::string& text) const {
  const std::filesystem::path temporary = folder_ / (name + ".tmp");
  std::ofstream(temporary) << text;
  std::filesystem::rename(temporary, folder_ / name);
}

void FaultJob::do_fault() const {
  write("fault", "");
  if (fault_ == "kill") std::raise(SIGKILL);
  if (fault_ == "stop") std::raise(SIGSTOP);
  if (fault_ == "exit") std::exit(3);
  if (fault_ == "signal") {
    // Many programs call exit() in a signal handler, though it is not made for that. The signal
    // comes while this thread waits.
    std::signal(SIGALRM, [](int) { std::exit(3); });
    const itimerval soon = {{0, 0}, {3, 0}};
    setitimer(ITIMER_REAL, &soon, nullptr);
  }
  if (fault_ == "throw") throw std::logic_error("thrown on purpose");
  if (fault_ == "leave") shutdown();
  if (fault_ == "stall") std::this_thread::sleep_for(std::chrono::hours(1));
}

int FaultJob::run(const std::function<void()>& work) const {
  std::string outcome = "no error";
  try {
    work();
  } catch (const Error& error) {
    outcome = error.what();
  }
  write("outcome." + std::to_string(last_rank()), outcome);
  return outcome == "no error" ? 0 : 1;
}

}  // namespace horon::testing_support

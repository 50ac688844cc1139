#include "horon/core/runtime/reaper.h"

#include <cstdlib>
#include <memory>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <gtest/gtest.h>

#include "horon/core/base/forked_child.h"

namespace horon::core {
namespace {

// A submission that holds an object of the program.
Submission holding(std::shared_ptr<void> tensor) {
  Submission submission;
  submission.keep_alive = std::move(tensor);
  return submission;
}

TEST(Reaper, ReleasesAllThatIsThere) {
  Reaper reaper;
  const auto tensor = std::make_shared<int>();
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i <= round; ++i) reaper.add(holding(tensor));
    EXPECT_EQ(tensor.use_count(), 2 + round);
    reaper.release();
    EXPECT_EQ(tensor.use_count(), 1);
  }
}

// Only threads of the program destroy it.
TEST(Reaper, KeepsWhatCallbacksAndEventsOwn) {
  struct OwningEvent final : Event {
    explicit OwningEvent(std::shared_ptr<int> owned) : tensor(std::move(owned)) {}
    bool happened() override { return true; }
    void wait() override {}
    std::shared_ptr<int> tensor;
  };
  Reaper reaper;
  const auto tensor = std::make_shared<int>();
  Submission allocates, waits;
  allocates.allocate_output = [tensor](size_t, int64_t, MemoryQueue&) { return nullptr; };
  waits.ready = std::make_unique<OwningEvent>(tensor);
  for (Submission* const each : {&allocates, &waits}) {
    reaper.add(std::move(*each));
    *each = {};
  }
  EXPECT_EQ(tensor.use_count(), 3);
  reaper.release();
  EXPECT_EQ(tensor.use_count(), 1);
}

TEST(Reaper, WhatDiesMayReleaseToo) {
  Reaper reaper;
  bool released = false;
  const auto release = [&](int* number) {
    delete number;
    reaper.release();
    released = true;
  };
  reaper.add(holding(std::shared_ptr<int>(new int, release)));
  reaper.release();
  EXPECT_TRUE(released);
}

// The objects may stand for resources that belong to the parent, such as streams of a GPU.
TEST(Reaper, DestroysNothingInAForkedChild) {
  watch_for_forks();  // as a session does
  Reaper reaper;
  const auto tensor = std::make_shared<int>();
  reaper.add(holding(tensor));
  const pid_t child = fork();
  if (child == 0) {
    reaper.release();
    _exit(tensor.use_count() == 2 ? 0 : 1);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  reaper.release();
  EXPECT_EQ(tensor.use_count(), 1);
}

void release_once_more() {
  Reaper reaper;
  reaper.add(holding(std::make_shared<int>()));
  reaper.release();
}

// A session may end there, when the thread_local variables of the main thread have been destroyed.
TEST(ReaperDeathTest, WorksInFunctionsOfAtexit) {
  const auto exit_after_use = [] {
    Reaper reaper;
    reaper.add(holding(std::make_shared<int>()));
    reaper.add(holding(std::make_shared<int>()));
    reaper.release();
    (void)std::atexit(release_once_more);
    std::exit(0);
  };
  EXPECT_EXIT(exit_after_use(), testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace horon::core

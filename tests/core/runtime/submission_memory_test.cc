// Who owns the objects that a submission holds, and on which thread they are released.
#include <barrier>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace test_world;
using testing::HasSubstr;

// Which threads release tensors, and which threads belong to the program.
struct Threads {
  std::mutex mutex;
  std::set<std::thread::id> releasing;
  std::set<std::thread::id> program;
  int alive = 0;

  void note_program() {
    const std::lock_guard lock(mutex);
    program.insert(std::this_thread::get_id());
  }
};

// A tensor that notes which thread destroys it.
std::shared_ptr<Tensor> watched(Threads& threads, Tensor tensor) {
  {
    const std::lock_guard lock(threads.mutex);
    ++threads.alive;
  }
  return {new Tensor(std::move(tensor)), [&threads](Tensor* dying) {
            delete dying;
            const std::lock_guard lock(threads.mutex);
            threads.releasing.insert(std::this_thread::get_id());
            --threads.alive;
          }};
}

// An allgather whose memory, callback and event are watched, and that only the submission owns.
Submission watched_gather(Threads& threads, const std::string& name) {
  const auto rows = watched(threads, tensor({1}, CollectiveKind::Allgather));
  const auto out = watched(threads, tensor({}));
  Submission mine = submission(name, *rows);
  mine.memory.front().output = nullptr;
  mine.keep_alive = rows;
  mine.ready = std::make_unique<PolledEvent>(
      [event = watched(threads, tensor({}))] { return event != nullptr; });
  mine.allocate_output = [&threads, out](size_t, int64_t elements, MemoryQueue&) {
    const std::lock_guard lock(threads.mutex);
    out->data.resize(static_cast<size_t>(elements));
    return reinterpret_cast<std::byte*>(out->data.data());
  };
  return mine;
}

// Where work is enqueued on a device, waits until `released` is true: the loop sees only a moment
// later that the work has been done. Elsewhere there is nothing to wait for.
void release_until(Runtime& runtime, const std::function<bool()>& released) {
  if (test::memory_of_worlds() != test::FakeMemory::Enqueued) return;
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  while (!released() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    runtime.release_finished();
  }
}

void expect_released_by_the_program(Threads& threads) {
  const std::lock_guard lock(threads.mutex);
  EXPECT_FALSE(threads.releasing.empty());
  for (const std::thread::id id : threads.releasing) {
    EXPECT_TRUE(threads.program.contains(id)) << "released on a background thread";
  }
}

TEST(SubmissionMemory, IsReleasedByThreadsOfTheProgram) {
  Threads threads;
  threads.note_program();
  {
    World world(2);
    std::barrier<> refused(2);
    world.each([&](Runtime& runtime, int rank) {
      threads.note_program();
      for (int i = 0; i < 50; ++i) {
        // Nobody waits for these: the runtime is their last owner.
        (void)runtime.submit(watched_gather(threads, "dropped " + std::to_string(i)));
        const auto handle = runtime.submit(watched_gather(threads, "waited for"));
        EXPECT_EQ(error_of(*handle), "");
      }
      if (rank == 1) refused.arrive_and_wait();
      const auto first = runtime.submit(watched_gather(threads, "twice"));
      if (rank == 0) {  // refused by the loop, and never started
        const auto second = runtime.submit(watched_gather(threads, "twice"));
        EXPECT_THAT(error_of(*second), HasSubstr("submitted again"));
        refused.arrive_and_wait();
      }
      EXPECT_EQ(error_of(*first), "");
    });
  }
  expect_released_by_the_program(threads);
  EXPECT_EQ(threads.alive, 0);
}

// What a submission holds is destroyed while no thread holds the loop, so its destructor may use
// the runtime.
TEST(SubmissionMemory, MayUseTheRuntimeWhenItDies) {
  Threads threads;
  World world(1);
  world.each([&](Runtime& runtime, int) {
    int deaths = 0;
    for (int i = 0; i < 20; ++i) {
      auto owner = watched(threads, tensor({1}));
      Submission mine = submission("x", *owner);
      mine.keep_alive = std::shared_ptr<void>(nullptr, [&runtime, &deaths, owner](void*) {
        Tensor last = tensor({1});
        EXPECT_EQ(error_of(*runtime.submit(submission("of the destructor", last))), "");
        ++deaths;
      });
      const auto handle = runtime.submit(std::move(mine));
      EXPECT_EQ(error_of(*handle), "");
    }
    release_until(runtime, [&] { return deaths == 20; });
    EXPECT_EQ(deaths, 20);
  });
}

TEST(SubmissionMemory, OfAWaitIsReleasedWhenItReturns) {
  Threads threads;
  World world(1);
  world.each([&](Runtime& runtime, int) {
    EXPECT_EQ(error_of(*runtime.submit(watched_gather(threads, "x"))), "");
    release_until(runtime, [&] { return threads.alive == 0; });
    EXPECT_EQ(threads.alive, 0);
  });
}

TEST(SubmissionMemory, OfWhatNobodyHasWaitedForIsReleasedByShutdown) {
  World world(1);
  world.each([](Runtime& runtime, int) {
    const auto x = std::make_shared<Tensor>(tensor({1}));
    Submission mine = submission("x", *x);
    mine.keep_alive = x;
    const auto handle = runtime.submit(std::move(mine));
    while (!handle->finished()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_EQ(x.use_count(), 2);
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    EXPECT_EQ(x.use_count(), 1);
  });
}

TEST(SubmissionMemory, OfAFailedCollectiveStaysForEver) {
  Threads& threads = *new Threads;
  {
    World world(2, {.fail_op_at_sequence = 0});
    world.each([&](Runtime& runtime, int) {
      const auto handle = runtime.submit(watched_gather(threads, "x"));
      EXPECT_THAT(error_of(*handle), HasSubstr("fake network is down"));
    });
  }
  EXPECT_EQ(threads.alive, 6)
      << "input, result and event of both ranks: a peer may still write there";
}

TEST(SubmissionMemory, OfWhatNeverStartedIsReleasedWhenTheJobFails) {
  Threads threads;
  {
    World world(2, {.fail_op_at_sequence = 0});
    world.each([&](Runtime& runtime, int rank) {
      // Only this rank has submitted it, so no rank can have begun to write.
      std::shared_ptr<HandleState> waiting;
      if (rank == 0) waiting = runtime.submit(watched_gather(threads, "alone"));
      const auto x = std::make_shared<Tensor>(tensor({1}));
      Submission fails = submission("x", *x);
      fails.keep_alive = x;
      EXPECT_THAT(error_of(*runtime.submit(std::move(fails))), HasSubstr("network is down"));
      if (rank != 0) return;
      EXPECT_THAT(error_of(*waiting), HasSubstr("network is down"));
    });
  }
  EXPECT_EQ(threads.alive, 0);
}

}  // namespace
}  // namespace horon::core

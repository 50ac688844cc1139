#include "horon/core/runtime/completion_queue.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include <gmock/gmock.h>

#include "horon/core/base/forked_child.h"
#include "horon/tests/core/runtime/runtime_world.h"
#include "horon/tests/support/asleep.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::ElementsAre;

TEST(CompletionQueue, SaysNothingUntilAHandleHasFinished) {
  const auto queue = std::make_shared<CompletionQueue>();
  HandleState first, second, forgotten;
  first.notify(queue, 1);
  second.notify(queue, 2);
  forgotten.notify(queue, 3);
  EXPECT_EQ(queue->next(0ns), std::nullopt);
  EXPECT_EQ(queue->next(1ms), std::nullopt);
  second.finish({});
  first.finish({});
  EXPECT_EQ(queue->next(std::nullopt), 2U);
  EXPECT_EQ(queue->next(std::nullopt), 1U);
  EXPECT_EQ(queue->next(0ns), std::nullopt);
  first.notify(queue, 4);  // it has finished before
  EXPECT_EQ(queue->next(0ns), 4U);
}

TEST(CompletionQueue, NoneIsRefusedAtOnce) {
  HandleState handle;
  EXPECT_THROW(handle.notify(nullptr, 1), Error);
  handle.finish({});
  EXPECT_THROW(handle.notify(nullptr, 1), Error);
}

TEST(CompletionQueue, OneHandleTellsAllThatAsk) {
  const auto one = std::make_shared<CompletionQueue>();
  const auto other = std::make_shared<CompletionQueue>();
  HandleState handle;
  handle.notify(one, 1);
  handle.notify(one, 2);
  handle.notify(other, 3);
  handle.finish({});
  std::vector<uint64_t> tokens = {*one->next(0ns), *one->next(0ns)};
  std::ranges::sort(tokens);
  EXPECT_THAT(tokens, ElementsAre(1, 2));
  EXPECT_EQ(other->next(0ns), 3U);
}

TEST(CompletionQueue, ALongOneEndsWithWhatIsInIt) {
  auto queue = std::make_shared<CompletionQueue>();
  HandleState handle;
  handle.finish({});
  for (uint64_t token = 0; token < 300'000; ++token) handle.notify(queue, token);
  EXPECT_EQ(queue->next(0ns), 0U);
  queue.reset();
}

TEST(CompletionQueue, CloseEndsTheWaitsOfAll) {
  const auto queue = std::make_shared<CompletionQueue>();
  HandleState handle;
  handle.finish({});
  handle.notify(queue, 7);
  std::atomic<int> tokens = 0;
  std::array<std::atomic<pid_t>, 3> ids = {};
  std::vector<std::thread> takers;
  for (std::atomic<pid_t>& id : ids) {
    takers.emplace_back([&] {
      id = gettid();
      while (queue->next(std::nullopt)) ++tokens;
    });
  }
  for (const std::atomic<pid_t>& id : ids) {
    while (id == 0 || !asleep(id)) std::this_thread::yield();
  }
  queue->close();
  for (std::thread& taker : takers) taker.join();
  EXPECT_EQ(tokens, 1);
}

// The deadline would lie beyond the end of the clock.
TEST(CompletionQueue, AWaitMayHaveTheLongestLimit) {
  const auto queue = std::make_shared<CompletionQueue>();
  std::atomic<pid_t> id = 0;
  std::atomic<bool> returned = false;
  std::thread taker([&] {
    id = gettid();
    EXPECT_EQ(queue->next(std::chrono::nanoseconds::max()), 7U);
    returned = true;
  });
  while (!returned && (id == 0 || !asleep(id))) std::this_thread::yield();
  HandleState handle;
  handle.finish({});
  handle.notify(queue, 7);
  taker.join();
}

// The queue is one on which a thread of the parent waits.
TEST(CompletionQueue, EndsInAForkedChild) {
  watch_for_forks();  // as a session does
  auto queue = std::make_shared<CompletionQueue>();
  auto handle = std::make_unique<HandleState>();
  handle->finish({});
  std::thread taker([&queue = *queue] { (void)queue.next(std::nullopt); });
  std::this_thread::sleep_for(20ms);  // it waits by now
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs is killed
    handle->notify(queue, 1);
    const bool told = queue->next(std::nullopt).has_value();
    queue->close();
    queue.reset();
    _exit(told ? 1 : 0);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  queue->close();
  taker.join();
}

// Threads call notify() while others finish handles: each handle is reported once for each call.
TEST(CompletionQueue, NoTokenIsLostOrDoubled) {
  constexpr int kHandles = 20'000;
  const auto queue = std::make_shared<CompletionQueue>();
  std::vector<std::unique_ptr<HandleState>> handles;
  for (int i = 0; i < kHandles; ++i) handles.push_back(std::make_unique<HandleState>());
  std::latch begin(3);
  const auto ask = [&](uint64_t parity) {
    begin.arrive_and_wait();
    for (size_t i = 0; i < handles.size(); ++i) handles[i]->notify(queue, 2 * i + parity);
  };
  std::thread even(ask, 0), odd(ask, 1);
  begin.arrive_and_wait();
  for (const auto& handle : handles) handle->finish({});
  even.join();
  odd.join();
  std::vector<int> seen(2 * handles.size());
  while (const auto token = queue->next(0ns)) ++seen[*token];
  EXPECT_EQ(std::ranges::count(seen, 1), std::ssize(seen));
}

// One thread of each rank submits and never waits; another thread takes what has ended.
TEST(CompletionQueue, TellsOfEveryCollectiveOfAProgram) {
  constexpr uint64_t kCalls = 200;
  World world(2, {.op_polls = 1});
  world.each([](Runtime& runtime, int rank) {
    const auto queue = std::make_shared<CompletionQueue>();
    std::vector<Tensor> tensors(kCalls);
    std::vector<std::shared_ptr<HandleState>> handles(kCalls);
    std::vector<uint64_t> order(kCalls);
    std::iota(order.begin(), order.end(), uint64_t{0});
    if (rank == 1) std::ranges::reverse(order);
    for (uint64_t call = 0; call < kCalls; ++call) tensors[call] = tensor({1.0F * rank + call});
    std::thread submitter([&] {
      for (const uint64_t call : order) {
        handles[call] = runtime.submit(submission(std::to_string(call), tensors[call]));
        handles[call]->notify(queue, call);
      }
    });
    std::vector<bool> ended(kCalls);
    for (uint64_t i = 0; i < kCalls; ++i) {
      const uint64_t call = queue->next(std::nullopt).value();
      EXPECT_FALSE(ended[call]);
      ended[call] = true;
      EXPECT_THAT(tensors[call].data, ElementsAre(1.0F + 2 * call));
    }
    submitter.join();
    for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
  });
}

// The end of a job must be reported although no thread waits for a handle.
TEST(CompletionQueue, TellsOfErrorsToo) {
  World world(2);
  world.each([](Runtime& runtime, int rank) {
    const auto queue = std::make_shared<CompletionQueue>();
    Tensor x = tensor(std::vector<float>(rank == 0 ? 1 : 2, 1));
    const auto handle = runtime.submit(submission("x", x));
    handle->notify(queue, 5);
    EXPECT_EQ(queue->next(std::nullopt), 5U);
    EXPECT_THAT(error_of(*handle), testing::HasSubstr("disagree about the shape"));
  });
}

}  // namespace
}  // namespace horon::core

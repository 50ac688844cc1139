// Work ahead on several threads: order, bound, errors, and an end at any time.
#include "horon/torch_bindings/data/prefetcher.h"

#include <atomic>
#include <csignal>
#include <latch>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

namespace horon::torch_detail {
namespace {

using Numbers = Prefetcher<int>;

// The numbers 0 .. count-1; `work` is done for each on a background thread.
Numbers::Draw counting(
    int count, std::function<int(int)> work = [](int i) { return i; }) {
  return [next = 0, count, work]() mutable -> Numbers::Work {
    if (next == count) return {};
    return [i = next++, work](size_t /*thread*/) { return work(i); };
  };
}

TEST(Prefetcher, HandsOutInOrderWhateverThreadIsDoneFirst) {
  for (const size_t threads : {1, 2, 5}) {
    for (const size_t ahead : {1, 2, 7}) {
      Numbers numbers(counting(200,
                               [](int i) {
                                 for (int turn = 0; turn < i * 7 % 5; ++turn) {
                                   std::this_thread::yield();
                                 }
                                 return i;
                               }),
                      threads, ahead);
      for (int i = 0; i < 200; ++i) ASSERT_EQ(numbers.next(), i);
      EXPECT_EQ(numbers.next(), std::nullopt);
      EXPECT_EQ(numbers.next(), std::nullopt);
    }
  }
}

TEST(Prefetcher, WorksWhileTheProgramDoes) {
  std::latch second_is_done(2);
  Numbers numbers(counting(3,
                           [&](int i) {
                             if (i < 2) second_is_done.count_down();
                             return i;
                           }),
                  1, 2);
  second_is_done.wait();  // without a call of next(); a loader that is not ahead would hang here
  EXPECT_EQ(numbers.next(), 0);
}

TEST(Prefetcher, IsNeverFurtherAheadThanTold) {
  std::atomic<int> drawn{0};
  std::atomic<int> handed_out{0};
  std::atomic<int> most{0};
  Numbers numbers(
      [&]() -> Numbers::Work {
        if (drawn == 300) return {};
        most = std::max<int>(most, ++drawn - handed_out);
        return [i = drawn - 1](size_t /*thread*/) { return i; };
      },
      3, 4);
  for (int i = 0; i < 300; ++i) {
    handed_out = i;  // before next(), which makes room
    ASSERT_EQ(numbers.next(), i);
  }
  // While next() hands out item i, i counts as not handed out, and there is room for one more.
  EXPECT_LE(most, 5);
}

TEST(Prefetcher, AnErrorArrivesBehindTheItemsBeforeIt) {
  for (const size_t threads : {1, 3}) {
    Numbers numbers(counting(50,
                             [](int i) {
                               if (i == 20) throw std::out_of_range("sample 20");
                               return i;
                             }),
                    threads, 6);
    for (int i = 0; i < 20; ++i) ASSERT_EQ(numbers.next(), i);
    try {
      (void)numbers.next();
      FAIL() << "no error";
    } catch (const std::out_of_range& error) {
      EXPECT_EQ(std::string(error.what()), "sample 20");
    }
    EXPECT_EQ(numbers.next(), std::nullopt) << "then comes the end";
  }
}

// Also where the items behind it have been made before.
TEST(Prefetcher, BehindAnErrorComesTheEnd) {
  std::latch others_are_drawn(2);
  Numbers numbers(counting(9,
                           [&](int i) {
                             if (i == 0) {
                               others_are_drawn.wait();
                               throw std::out_of_range("sample 0");
                             }
                             others_are_drawn.count_down();
                             return i;
                           }),
                  3, 3);
  EXPECT_THROW((void)numbers.next(), std::out_of_range);
  EXPECT_EQ(numbers.next(), std::nullopt);
}

TEST(Prefetcher, AnErrorOfDrawingArrivesToo) {
  int drawn = 0;
  Numbers numbers(
      [&]() -> Numbers::Work {
        if (++drawn == 3) throw std::runtime_error("no more");
        return [i = drawn](size_t /*thread*/) { return i; };
      },
      2, 3);
  EXPECT_EQ(numbers.next(), 1);
  EXPECT_EQ(numbers.next(), 2);
  EXPECT_THROW((void)numbers.next(), std::runtime_error);
  EXPECT_EQ(numbers.next(), std::nullopt);
}

// With items that nobody fetches, with threads that wait for room, in the middle of work.
TEST(Prefetcher, EndsAtAnyTime) {
  for (int round = 0; round < 100; ++round) {
    std::atomic<int> done{0};
    {
      Numbers numbers(counting(1000,
                               [&](int i) {
                                 ++done;
                                 return i;
                               }),
                      1 + static_cast<size_t>(round % 4), 1 + static_cast<size_t>(round % 3));
      for (int i = 0; i < round % 7; ++i) ASSERT_EQ(numbers.next(), i);
    }
    EXPECT_LE(done, round % 7 + 4) << "what was not begun is not done";
  }
}

TEST(Prefetcher, SignalsStayWithTheProgramsThreads) {
  const auto is_blocked = [] {
    sigset_t signals;
    pthread_sigmask(SIG_BLOCK, nullptr, &signals);
    return sigismember(&signals, SIGUSR1);
  };
  Numbers numbers(counting(1, [&](int /*i*/) { return is_blocked(); }), 1, 1);
  EXPECT_EQ(numbers.next(), 1);
  EXPECT_EQ(is_blocked(), 0) << "of the program";
}

TEST(Prefetcher, ThreadsAreNumbered) {
  Numbers numbers([]() -> Numbers::Work { return [](size_t t) { return static_cast<int>(t); }; }, 3,
                  3);
  for (int i = 0; i < 30; ++i) {
    const std::optional<int> thread = numbers.next();
    ASSERT_TRUE(thread && *thread >= 0 && *thread < 3);
  }
}

}  // namespace
}  // namespace horon::torch_detail

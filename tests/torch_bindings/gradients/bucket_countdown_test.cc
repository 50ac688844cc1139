#include "horon/torch_bindings/gradients/bucket_countdown.h"

#include <atomic>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace horon::bucket_countdown_test {
namespace {

using namespace torch_detail;

TEST(BucketCountdown, TheWriterOfTheLastAwaitedGradientSubmits) {
  BucketCountdown bucket;
  bucket.begin(2);
  bucket.enter();
  EXPECT_FALSE(bucket.leave(true, true));
  bucket.enter();
  EXPECT_FALSE(bucket.leave(false, true)) << "another gradient is awaited";
  bucket.enter();
  EXPECT_TRUE(bucket.leave(true, true));
  bucket.submitted();
  for (const bool came : {true, false, true}) {
    bucket.enter();
    EXPECT_FALSE(bucket.leave(came, true)) << "it has been submitted";
  }
  bucket.begin(1);  // the next round
  bucket.enter();
  EXPECT_TRUE(bucket.leave(true, true));
  bucket.submitted();
}

TEST(BucketCountdown, OneThatStillWritesSubmits) {
  BucketCountdown bucket;
  bucket.begin(1);
  bucket.enter();
  bucket.enter();
  EXPECT_FALSE(bucket.leave(true, true));
  EXPECT_TRUE(bucket.leave(false, true));
  bucket.submitted();
}

TEST(BucketCountdown, StaysUntilOneLeavesThatMaySubmit) {
  BucketCountdown bucket;
  bucket.begin(1);
  bucket.enter();
  EXPECT_FALSE(bucket.leave(true, false));
  bucket.enter();
  EXPECT_TRUE(bucket.leave(false, true));
  bucket.submitted();
}

TEST(BucketCountdown, WritersStayThroughANewBeginning) {
  BucketCountdown bucket;
  bucket.enter();
  bucket.begin(1);
  bucket.enter();
  EXPECT_FALSE(bucket.leave(true, true));
  EXPECT_TRUE(bucket.leave(false, true));
  bucket.submitted();
}

TEST(BucketCountdown, AClosedOneIsNotSubmitted) {
  BucketCountdown bucket;
  bucket.begin(1);
  bucket.close();
  for (const bool came : {true, false, true}) {
    bucket.enter();
    EXPECT_FALSE(bucket.leave(came, true));
  }
  bucket.enter();  // an exception keeps this writer from leaving
  bucket.reset();
  bucket.begin(1);
  bucket.enter();
  EXPECT_TRUE(bucket.leave(true, true));
  bucket.submitted();
}

// The thread that submits reads what all writers have written, also those that were not awaited,
// and nobody writes meanwhile: ThreadSanitizer watches plain memory.
TEST(BucketCountdown, NobodyWritesWhileAnotherSubmits) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 300;
  BucketCountdown bucket;
  int64_t memory[2 * kThreads] = {};  // of each thread an awaited and another gradient
  int64_t sum = 0;
  std::atomic<int> submissions{0}, arrived{0};
  const auto rendezvous = [&](int all) {
    ++arrived;
    while (arrived < all) std::this_thread::yield();
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < kRounds; ++round) {
        if (t == 0) bucket.begin(kThreads);
        rendezvous((2 * round + 1) * kThreads);
        for (int i = 0; i < 2; ++i) {
          bucket.enter();
          ++memory[2 * t + i];
          if (!bucket.leave(i == 0, true)) continue;
          ++submissions;
          for (const int64_t& value : memory) sum += value;
          bucket.submitted();
        }
        rendezvous((2 * round + 2) * kThreads);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(submissions, kRounds);
  int64_t written = 0;
  for (const int64_t value : memory) written += value;
  EXPECT_EQ(written, 2 * kThreads * kRounds);
  EXPECT_GE(sum, kThreads);
}

// A round may begin while writers come and leave: none is lost.
TEST(BucketCountdown, BeginsAmongWriters) {
  constexpr int kWrites = 2000;
  BucketCountdown bucket;
  std::thread writer([&] {
    for (int i = 0; i < kWrites; ++i) {
      bucket.enter();
      EXPECT_FALSE(bucket.leave(false, true));
    }
  });
  for (int i = 0; i < kWrites; ++i) bucket.begin(2);
  writer.join();
  for (const bool last : {false, true}) {
    bucket.enter();
    EXPECT_EQ(bucket.leave(true, true), last);
  }
  bucket.submitted();
}

}  // namespace
}  // namespace horon::bucket_countdown_test

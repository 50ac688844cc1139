// Several threads of a rank in backward() at once: reducers, optimizers, differentiable
// collectives. ThreadSanitizer runs what is here.
#include <atomic>
#include <barrier>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/nn/utils/clip_grad.h>

#include "horon/tests/torch_bindings/collectives/autograd_support.h"
#include "horon/tests/torch_bindings/gradients/backward_support.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/autograd.h"
#include "horon/torch_bindings/gradients/slot.h"

namespace horon::threads_in_backward_test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace testing_support;

TEST(ThreadsInBackward, TheLastOfSeveralThreadsReducesForAll) {
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({2}, at::kDouble);
  std::barrier<> overlap(2);
  for (const at::Tensor& w : {a, b}) {
    call_after(w, [&](const at::Tensor&) { overlap.arrive_and_wait(); });
  }
  auto optimizer = sgd({{"a", a}, {"b", b}});
  for (int step = 1; step <= 20; ++step) {
    optimizer.zero_grad();
    std::jthread other([&] { weighted(a, rank() + 1).backward(); });
    weighted(b, rank() + 1).backward();
    other.join();
    expect_gradient(a, mean_of_ranks());
    expect_gradient(b, mean_of_ranks());
    ::torch::nn::utils::clip_grad_value_({a, b}, 1e6);
    optimizer.step();
    expect_value(a, 1 - step * mean_of_ranks());
    expect_value(b, 1 - step * mean_of_ranks());
  }
  // A rank that reduces with nobody hears of a thread when its first gradient is there.
  if (size() > 1) {
    EXPECT_EQ(optimizer.statistics().steps, 20);
  }
}

TEST(ThreadsInBackward, ThreadsThatOverlapNowAndThen) {
  const at::Tensor a = leaf({3}, at::kDouble), b = leaf({2}, at::kDouble);
  auto optimizer = sgd({{"a", a}, {"b", b}}, in_flight());
  for (int step = 1; step <= 20; ++step) {
    optimizer.zero_grad();
    std::jthread other([&] { weighted(a, rank() + 1).backward(); });
    if ((step + rank()) % 3 == 0) other.join();
    weighted(b, rank() + 1).backward();
    if (other.joinable()) other.join();
    optimizer.step();
    expect_value(a, 1 - step * mean_of_ranks());
    expect_value(b, 1 - step * mean_of_ranks());
  }
}

// Parameters of one bucket on two threads, one of them not expected: it may be packed while the
// other completes the bucket.
TEST(ThreadsInBackward, UnexpectedGradientOnAnotherThread) {
  const at::Tensor a = leaf({4000}, at::kDouble), b = leaf({4000}, at::kDouble);
  auto optimizer = sgd({{"a", a}, {"b", b}}, {.wait_in = WaitIn::Step});
  double want_b = 1;
  for (int step = 1; step <= 40; ++step) {
    optimizer.zero_grad(step % 4 < 2);
    const bool both = step % 2 == 0;  // so that b is never expected when it comes
    std::barrier<> together(both ? 2 : 1);
    std::jthread other;
    if (both) {
      other = std::jthread([&] {
        const at::Tensor loss = weighted(b, rank() + 1);
        together.arrive_and_wait();
        loss.backward();
      });
      want_b -= mean_of_ranks();
    }
    const at::Tensor loss = weighted(a, rank() + 1);
    together.arrive_and_wait();
    loss.backward();
    if (other.joinable()) other.join();
    optimizer.step();
    expect_value(a, 1 - step * mean_of_ranks());
    expect_value(b, want_b);
    if (HasFailure()) return;
  }
}

// Each thread has a part of each bucket.
TEST(ThreadsInBackward, ManyThreadsFillTheSameBuckets) {
  constexpr size_t threads = 4, buckets = 3;
  std::vector<std::pair<std::string, at::Tensor>> named;
  std::vector<std::vector<std::string>> groups(buckets);
  for (size_t i = 0; i < threads * buckets; ++i) {
    named.emplace_back("w" + std::to_string(i), leaf({500}, at::kDouble));
    groups[i / threads].push_back(named.back().first);
  }
  auto optimizer = sgd(named, {.groups = groups, .wait_in = WaitIn::Step});
  for (int step = 1; step <= 20; ++step) {
    optimizer.zero_grad();
    std::barrier<> together(threads);
    {
      std::vector<std::jthread> running;
      for (size_t thread = 0; thread < threads; ++thread) {
        running.emplace_back([&, thread] {
          at::Tensor loss = weighted(named[thread].second, rank() + 1);
          for (size_t bucket = 1; bucket < buckets; ++bucket) {
            loss = loss + weighted(named[bucket * threads + thread].second, rank() + 1);
          }
          together.arrive_and_wait();
          loss.backward();
        });
      }
    }
    optimizer.step();
    for (const auto& [name, w] : named) expect_value(w, 1 - step * mean_of_ranks());
  }
  EXPECT_EQ(optimizer.statistics().buckets, static_cast<int64_t>(buckets));
}

// Two backward passes at the same time, each with parameters in every bucket: the one that came
// first needs no lock in its hooks, the other one does. A step has `passes` such pairs.
void fill_buckets_from_two_threads(int passes, WaitIn wait_in) {
  constexpr size_t threads = 2, buckets = 4;
  std::vector<std::pair<std::string, at::Tensor>> named;
  std::vector<std::vector<std::string>> groups(buckets);
  std::barrier<> overlap(threads);
  std::atomic<bool> first[threads];
  for (size_t i = 0; i < 2 * threads * buckets; ++i) {
    const size_t thread = i % threads;
    named.emplace_back("w" + std::to_string(i), leaf({500}, at::kDouble));
    groups[i / (2 * threads)].push_back(named.back().first);
    call_after(named.back().second, [&, thread](const at::Tensor&) {
      if (first[thread].exchange(false)) overlap.arrive_and_wait();
    });
  }
  auto optimizer =
      sgd(named, {.backward_passes_per_step = passes, .groups = groups, .wait_in = wait_in});
  const auto run_backward = [&](size_t thread) {
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (size_t i = thread; i < named.size(); i += threads) {
      loss = loss + weighted(named[i].second, rank() + 1);
    }
    loss.backward();
  };
  constexpr int steps = 30;
  for (int step = 1; step <= steps; ++step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < passes; ++pass) {
      for (std::atomic<bool>& each : first) each = true;
      std::jthread other([&] { run_backward(1); });
      run_backward(0);
      other.join();
    }
    if (wait_in == WaitIn::Step) optimizer.synchronize();
    for (const auto& [name, w] : named) expect_gradient(w, passes * mean_of_ranks());
    optimizer.step();
    for (const auto& [name, w] : named) expect_value(w, 1 - step * passes * mean_of_ranks());
    if (testing::Test::HasFailure()) return;
  }
  if (size() > 1) {
    EXPECT_EQ(optimizer.statistics().steps, steps);
    EXPECT_EQ(optimizer.statistics().submitted_in_backward, steps * static_cast<int>(buckets));
  }
}

TEST(ThreadsInBackward, TwoThreadsFillTheSameBucketsDuringBackward) {
  fill_buckets_from_two_threads(1, WaitIn::Backward);
  fill_buckets_from_two_threads(1, WaitIn::Step);
}

TEST(ThreadsInBackward, TwoThreadsFillTheSameBucketsInSeveralPasses) {
  fill_buckets_from_two_threads(3, WaitIn::Backward);
  fill_buckets_from_two_threads(3, WaitIn::Step);
}

// The function of before_bucket() keeps one thread in the hooks of a parameter while another comes.
TEST(ThreadsInBackward, OfOneParameterAreRefused) {
  const at::Tensor w = leaf({3}, at::kDouble);
  // The bucket goes in the hook.
  GradientReducer reducer({{"weight", w}}, {.wait_in = WaitIn::Step});
  std::string error;
  reducer.before_bucket([&](const BucketView&) {
    std::jthread([&] { error = error_of([&] { weighted(w, 100).backward(); }); }).join();
  });
  weighted(w, rank() + 1).backward();
  EXPECT_THAT(error, AllOf(StartsWith(kInvalid), HasSubstr("\"weight\""),
                           HasSubstr("two threads run backward()")));
  reducer.before_bucket(nullptr);
  reducer.synchronize();
  expect_close(w, mean_of_ranks());
  w.mutable_grad().reset();
  weighted(w, 1).backward();
  reducer.synchronize();
  expect_close(w, 1);
}

// A thread that comes between the hooks and synchronize() is noticed only by what it has written.
TEST(ThreadsInBackward, MayHaveWrittenToAGradientThatIsBeingReduced) {
  const at::Tensor w = leaf({3}, at::kDouble);
  GradientReducer reducer({{"weight", w}}, {.wait_in = WaitIn::Step});
  weighted(w, rank() + 1).backward();
  {
    const at::NoGradGuard no_grad;
    w.mutable_grad().add_(1);
  }
  EXPECT_THAT(error_of([&] { reducer.synchronize(); }),
              AllOf(StartsWith(kInvalid), HasSubstr("\"weight\""), HasSubstr("in one thread")));
}

TEST(ThreadsInBackward, InTheHooksOfOneParameterAreNoticed) {
  const torch_detail::GradientSettings settings;
  torch_detail::GradientSlot slot("shared", leaf({1}), settings);
  const std::optional<torch_detail::GradientSlot::Busy> one(std::in_place, slot);
  EXPECT_THAT(error_of([&] { const torch_detail::GradientSlot::Busy two(slot); }),
              AllOf(StartsWith(kInvalid), HasSubstr("\"shared\""), HasSubstr("two threads")));
}

// Two threads, each with a graph of its own; ranks differ in which backward begins first.
TEST(ThreadsInBackward, OfCollectivesMayBeginInAnotherOrderOnEachRank) {
  constexpr int kGraphs = 4;
  std::vector<at::Tensor> leaves, losses;
  for (int i = 0; i < kGraphs; ++i) {
    leaves.push_back(at::full({2}, i + 1.0, at::kDouble).requires_grad_(true));
    losses.push_back(
        autograd::allreduce(leaves[i], {.name = "graph." + std::to_string(i), .op = ReduceOp::Sum})
            .sum() *
        (i + 1));
  }
  std::vector<std::thread> threads;
  for (int turn = 0; turn < kGraphs; ++turn) {
    const int i = rank() % 2 == 0 ? turn : kGraphs - 1 - turn;
    threads.emplace_back([&losses, i] { losses[i].backward(); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < kGraphs; ++i) {
    expect_close(leaves[i].grad(), at::full({2}, (i + 1.0) * size(), at::kDouble));
  }
}

TEST(ThreadsInBackward, OfOneCollectiveShareItsName) {
  const at::Tensor x = at::ones({3}, at::kDouble).requires_grad_(true);
  const at::Tensor y = autograd::allreduce(x, {.name = "shared", .op = ReduceOp::Sum}).sum();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&y] { y.backward({}, /*retain_graph=*/true); });
  }
  for (std::thread& thread : threads) thread.join();
  expect_close(x.grad(), at::full({3}, 4.0 * size(), at::kDouble));
}

}  // namespace
}  // namespace horon::threads_in_backward_test

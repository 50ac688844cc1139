// A job ends while there is no memory. The first allocation that fails is a later one each time,
// and each time every handle must end on every rank.
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/execution/collective_op.h"
#include "horon/core/execution/op_table.h"
#include "horon/core/runtime/abort_sender.h"
#include "horon/tests/core/runtime/forwarding_transport.h"
#include "horon/tests/core/runtime/runtime_world.h"
#include "horon/tests/support/failing_allocation.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::AllOf;
using testing::AnyOf;
using testing::EndsWith;
using testing::HasSubstr;

// Waits without stepping the loop, so that the background thread does it: only there allocations
// fail.
bool ends(const HandleState& handle) {
  const auto limit = std::chrono::steady_clock::now() + kLongEnough;
  while (!handle.finished() && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(100us);
  }
  return handle.finished();
}

// Ends a job of two ranks by a failed batch on rank 0. From then on the background thread of that
// rank makes `n` allocations, and the next `failures` ones fail. Other batches are running there,
// and other tensors wait for rank 1. Only their callbacks own the results of batches that have
// started: they must outlive the job.
void end_job(int n, int failures) {
  Config config = no_limits();
  std::atomic<bool> all_is_under_way{false};
  std::latch all_is_submitted(2);
  std::vector<std::string> names;
  for (int i = 0; i < 6; ++i) names.push_back("tensor " + std::to_string(i));
  const Error fault(ErrorCode::OperationFailed, "the device is gone");
  World world(2, {}, config);
  world.each([&](Runtime& runtime, int rank) {
    std::vector<std::shared_ptr<HandleState>> handles;
    std::vector<std::weak_ptr<void>> results(names.size());
    std::vector<std::atomic<bool>> started(names.size());
    const auto begin = [&](const std::string& name, std::function<bool()> ready) {
      const auto x = std::make_shared<Tensor>(tensor({1}, CollectiveKind::Allgather));
      const auto result = std::make_shared<std::array<float, 2>>();
      Submission mine = submission(name, *x);
      mine.ready = std::make_unique<PolledEvent>(std::move(ready));
      mine.keep_alive = x;
      mine.allocate_output = [result](size_t, int64_t, MemoryQueue&) {
        return reinterpret_cast<std::byte*>(result->data());
      };
      handles.push_back(runtime.submit(std::move(mine)));
      return std::weak_ptr<void>(result);
    };
    for (size_t i = 0; i < names.size(); ++i) {
      if (rank == 1 && i >= 4) break;  // rank 0 waits for these
      results[i] = begin(names[i], [&, i, rank] {
        started[i] = true;
        if (rank == 1 || i != 1 || !all_is_under_way) return false;
        test::fail_allocations(n, failures);
        throw Error(fault);
      });
    }
    all_is_submitted.arrive_and_wait();
    if (rank == 0) {
      std::this_thread::sleep_for(2ms);
      all_is_under_way = true;
    }
    for (const auto& handle : handles) {
      if (!ends(*handle)) {
        ADD_FAILURE() << "a handle of rank " << rank << " does not end, allocation " << n << ", "
                      << failures << " failures";
        std::abort();  // the runtime still has the stack of this test
      }
      // This holds on rank 1 as well, whether or not rank 0 had the memory to send the cause.
      ASSERT_TRUE(handle->outcome().error.has_value());
      EXPECT_THAT(handle->outcome().error->what(),
                  AllOf(HasSubstr("rank 0"),
                        AnyOf(EndsWith("the device is gone"), EndsWith("out of memory"))))
          << "on rank " << rank << ", allocation " << n << ", " << failures << " failures";
    }
    EXPECT_THROW(begin("later", [] { return true; }), Error);
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_FALSE(started[i] && results[i].expired())
          << names[i] << " of rank " << rank << ", allocation " << n << ": peers may write there";
    }
  });
}

// A job of one rank makes a call while the loop is busy. From then on the loop makes `n`
// allocations, and the next one fails.
void call_alone(int n, Runtime& runtime, const std::function<std::shared_ptr<HandleState>()>& call,
                const std::string& error_of_call) {
  std::atomic<bool> waits_for_call{false};
  std::atomic<bool> is_called{false};
  bool is_short = false;
  const auto x = std::make_shared<Tensor>(tensor({1}));
  Submission mine = submission("x", *x);
  mine.keep_alive = x;
  mine.ready = std::make_unique<PolledEvent>([&] {
    if (is_short) return true;
    is_short = true;
    waits_for_call = true;
    while (!is_called) std::this_thread::sleep_for(100us);
    test::fail_allocations(n, 1);
    return false;
  });
  const auto reduced = runtime.submit(std::move(mine));
  while (!waits_for_call) std::this_thread::sleep_for(100us);
  const auto called = call();
  is_called = true;
  for (const auto& handle : {called, reduced}) {
    if (!ends(*handle)) {
      ADD_FAILURE() << "a handle does not end, allocation " << n;
      std::abort();  // as above
    }
    if (handle->outcome().error) {
      EXPECT_THAT(handle->outcome().error->what(),
                  AnyOf(EndsWith("out of memory"), EndsWith(error_of_call)));
    }
  }
}

void join_alone(int n) {
  World world(1, {}, no_limits());
  world.each([&](Runtime& runtime, int) {
    call_alone(
        n, runtime, [&] { return runtime.join(); }, "out of memory");
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
  });
}

// An op that calls `when_asked` whenever a submission asks whether it can run that.
class AskedOp final : public CollectiveOp {
 public:
  explicit AskedOp(std::function<void()> when_asked) : when_asked_(std::move(when_asked)) {}
  std::string_view name() const override { return "asked"; }
  std::string refusal(const BatchFacts&) const override {
    when_asked_();
    return "";
  }
  std::unique_ptr<InFlight> start(Batch) override { return nullptr; }

 private:
  const std::function<void()> when_asked_;
};

// The set is removed, as if by another thread, while submit() looks at the tensor.
void submit_to_removed_set(int n) {
  constexpr uint32_t kSet = 1;
  std::function<void()> when_asked = [] {};
  bool is_world = true;
  Hooks hooks;
  hooks.change_execution = [&](int, const std::vector<int>&, Executor::Parts& execution) {
    if (std::exchange(is_world, false)) return;
    std::vector<std::unique_ptr<CollectiveOp>> ops;
    ops.push_back(std::make_unique<AskedOp>([&] { when_asked(); }));
    execution.ops = std::make_shared<OpTable>(std::move(ops), "auto");
  };
  World world(1, {}, no_limits(), hooks);
  world.each([&](Runtime& runtime, int) {
    runtime.add_set(kSet, {0});
    const auto submit = [&] {
      when_asked = [&, asked = false]() mutable {
        if (!std::exchange(asked, true)) runtime.leave_set(kSet);
      };
      Tensor y = tensor({1});
      return runtime.submit(in_set(kSet, "y", y));
    };
    call_alone(n, runtime, submit, "has been removed");
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
  });
}

// Notes what it should send, without memory of its own.
class NotingTransport final : public ForwardingTransport {
 public:
  NotingTransport() : ForwardingTransport(std::move(InProcessTransport::make_world(3).front())) {}
  void send(int to, SharedBytes message) override {
    if (to == 1 && refusals > 0) {
      --refusals;
      throw std::bad_alloc();
    }
    sizes[static_cast<size_t>(to)] = message.size();
    ++sent[static_cast<size_t>(to)];
  }
  int refusals = 0;  // of messages to rank 1, for want of memory
  std::array<size_t, 3> sizes{};
  std::array<int, 3> sent{};
};

// The prepared message must do, and a peer that can't even get that is told later.
TEST(AbortSender, TellsEveryPeerOnceWithoutMemory) {
  const std::vector<int> one_host(3);
  const Error out_of_memory(ErrorCode::OperationFailed, "out of memory");
  const Error cause(ErrorCode::OperationFailed, "a text that is longer than the prepared one");
  NotingTransport transport;
  AbortSender sender(make_topology(0, one_host), out_of_memory, transport);
  EXPECT_TRUE(sender.done()) << "there is nothing to tell";
  transport.refusals = 1;
  test::fail_allocations(0, 1000);
  sender.send(cause);
  test::fail_allocations(0, 0);
  EXPECT_THAT(transport.sent, testing::ElementsAre(0, 0, 1));
  EXPECT_TRUE(sender.done());
  EXPECT_THAT(transport.sent, testing::ElementsAre(0, 1, 1));
  EXPECT_LT(transport.sizes[2], transport.sizes[1]) << "there is memory again";
  sender.send(out_of_memory);
  EXPECT_THAT(transport.sent, testing::ElementsAre(0, 1, 1)) << "only the first cause counts";
}

class ExhaustedMemory : public testing::TestWithParam<int> {};

TEST_P(ExhaustedMemory, EndsEveryHandleOnEveryRank) {
  int n = 0;
  do {
    end_job(n++, GetParam());
  } while (test::an_allocation_has_failed() && !testing::Test::HasFailure());
  EXPECT_GT(n, 10);
  testing::Test::RecordProperty("allocations", n);
}

TEST(ExhaustedMemoryAlone, EndsACallOfJoin) {
  int n = 0;
  do {
    join_alone(n++);
  } while (test::an_allocation_has_failed() && !testing::Test::HasFailure());
  EXPECT_GT(n, 3);
}

TEST(ExhaustedMemoryAlone, EndsACallToARemovedSet) {
  int n = 0;
  do {
    submit_to_removed_set(n++);
  } while (test::an_allocation_has_failed() && !testing::Test::HasFailure());
  EXPECT_GT(n, 3);
}

INSTANTIATE_TEST_SUITE_P(Failures, ExhaustedMemory, testing::Values(1, 2, 3, 8),
                         testing::PrintToStringParamName());

}  // namespace
}  // namespace horon::core

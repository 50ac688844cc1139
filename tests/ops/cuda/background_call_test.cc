// Calls that another thread makes: whoever asks gets the result once, or the error.
#include "horon/ops/cuda/background_call.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/tests/support/long_enough.h"

namespace horon::ops {
namespace {

// Asks until there is an answer.
std::optional<int> result_of(BackgroundCall<int>& call) {
  const auto deadline = std::chrono::steady_clock::now() + kLongEnough;
  while (std::chrono::steady_clock::now() < deadline) {
    if (const std::optional<int> result = call.take()) return result;
    std::this_thread::yield();
  }
  return std::nullopt;
}

TEST(BackgroundCall, GivesItsResultOnce) {
  std::atomic<int> unwanted = 0;
  {
    BackgroundCall<int> call([] { return 7; }, [&](int) { ++unwanted; });
    EXPECT_EQ(result_of(call), 7);
    EXPECT_EQ(call.take(), std::nullopt);
  }
  EXPECT_EQ(unwanted, 0);
}

TEST(BackgroundCall, GivesItsError) {
  BackgroundCall<int> call([]() -> int { throw Error(ErrorCode::Limit, "no memory"); });
  try {
    (void)result_of(call);
    FAIL() << "must throw";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Limit);
  }
}

// Otherwise what it has made would be lost: a communicator, or memory.
TEST(BackgroundCall, GivesBackWhatNobodyTakes) {
  for (const bool returns_first : {false, true}) {
    std::promise<void> may_return;
    const auto given_back = std::make_shared<std::promise<int>>();
    std::atomic<bool> returns = false;
    {
      const BackgroundCall<int> call(
          [&] {
            may_return.get_future().wait();
            returns = true;
            return 7;
          },
          [given_back](int result) { given_back->set_value(result); });
      if (returns_first) may_return.set_value();
      while (returns_first && !returns) std::this_thread::yield();
      if (returns_first) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    if (!returns_first) may_return.set_value();
    std::future<int> result = given_back->get_future();
    ASSERT_EQ(result.wait_for(kLongEnough), std::future_status::ready) << returns_first;
    EXPECT_EQ(result.get(), 7);
  }
}

}  // namespace
}  // namespace horon::ops

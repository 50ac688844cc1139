// The whole path of a submission, without MPI: ranks are threads, and the op is a fake.
#include "horon/core/runtime/runtime.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::HasSubstr;

using namespace test_world;

TEST(Runtime, SumsOverRanks) {
  World world(4);
  world.each([](Runtime& runtime, int rank) {
    Tensor x = tensor({1.0F * rank, 10.0F * rank});
    EXPECT_EQ(error_of(*runtime.submit(submission("x", x))), "");
    EXPECT_THAT(x.data, ElementsAre(6, 60));
  });
}

TEST(Runtime, OneRankNeedsNobody) {
  World world(1);
  world.each([](Runtime& runtime, int) {
    Tensor x = tensor({3});
    EXPECT_EQ(error_of(*runtime.submit(submission("x", x))), "");
    EXPECT_THAT(x.data, ElementsAre(3));
  });
}

TEST(Runtime, OrdersThatDifferByRankAndLateTensorsComplete) {
  World world(3, {.op_polls = 1, .copy_polls = 2});
  world.each([](Runtime& runtime, int rank) {
    std::mt19937 random(static_cast<unsigned>(rank) + 17);
    for (int step = 0; step < 20; ++step) {
      std::vector<Tensor> tensors;
      for (int i = 0; i < 12; ++i) tensors.push_back(tensor({1.0F * rank + i, 2.0F}));
      std::vector<size_t> order(tensors.size());
      std::iota(order.begin(), order.end(), 0U);
      std::shuffle(order.begin(), order.end(), random);
      std::vector<std::shared_ptr<HandleState>> handles;
      for (const size_t i : order) {
        if (random() % 16 == 0) std::this_thread::sleep_for(1ms);
        handles.push_back(runtime.submit(submission("t" + std::to_string(i), tensors[i])));
      }
      for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_THAT(tensors[i].data, ElementsAre(3.0F + 3.0F * static_cast<float>(i), 6.0F));
      }
    }
  });
}

TEST(Runtime, AMismatchIsTheSameErrorEverywhereAndTheNextCallWorks) {
  World world(3);
  world.each([](Runtime& runtime, int rank) {
    Tensor x = tensor(rank == 1 ? std::vector<float>{1, 2} : std::vector<float>{1, 2, 3});
    const std::string error = error_of(*runtime.submit(submission("loss", x)));
    EXPECT_THAT(error, HasSubstr("\"loss\""));
    EXPECT_THAT(error, HasSubstr("[3] on ranks 0 and 2"));
    EXPECT_THAT(error, HasSubstr("[2] on rank 1"));
    Tensor again = tensor({1});
    EXPECT_EQ(error_of(*runtime.submit(submission("loss", again))), "");
    EXPECT_THAT(again.data, ElementsAre(3));
  });
}

TEST(Runtime, ALocalFaultThrowsHereAndFailsTheOthers) {
  World world(2);
  world.each([](Runtime& runtime, int rank) {
    Tensor x = tensor({1});
    x.spec->kind = CollectiveKind::Broadcast;
    x.spec->root = rank == 0 ? 5 : 0;
    if (rank == 0) {
      EXPECT_THROW((void)runtime.submit(submission("b", x)), Error);
    } else {
      const std::string error = error_of(*runtime.submit(submission("b", x)));
      EXPECT_EQ(error,
                "tensor \"b\" was refused on rank 0: root 5 is not in the process set; its "
                "ranks are 0 and 1");
    }
    Tensor again = tensor({1});
    EXPECT_EQ(error_of(*runtime.submit(submission("b", again))), "");
  });
}

TEST(Runtime, ANameInFlightTwiceIsAnErrorOfTheSecond) {
  World world(2);
  world.each([](Runtime& runtime, int rank) {
    Tensor first = tensor({1}), second = tensor({2}), done = tensor({0});
    if (rank == 0) {
      const auto handle = runtime.submit(submission("x", first));
      EXPECT_THAT(error_of(*runtime.submit(submission("x", second))), HasSubstr("again"));
      EXPECT_EQ(error_of(*runtime.submit(submission("go", done))), "");
      EXPECT_EQ(error_of(*handle), "");
    } else {
      EXPECT_EQ(error_of(*runtime.submit(submission("go", done))), "");
      EXPECT_EQ(error_of(*runtime.submit(submission("x", first))), "");
    }
  });
}

TEST(Runtime, ARankThatLeavesEarlyIsNamed) {
  World world(3);
  world.each([](Runtime& runtime, int rank) {
    if (rank == 1) {
      EXPECT_EQ(runtime.shutdown(kLongEnough), "");
      Tensor late = tensor({1});
      EXPECT_THROW((void)runtime.submit(submission("late", late)), Error);
      return;
    }
    Tensor x = tensor({1});
    EXPECT_THAT(error_of(*runtime.submit(submission("x", x))), HasSubstr("rank 1 has shut down"));
    runtime.shutdown(kLongEnough);
  });
}

// The slow op is still in flight when both ranks have announced that they leave.
TEST(Runtime, ShutdownWithBatchesInFlightEndsEveryHandle) {
  World world(2, {.op_polls = 300});
  world.each([](Runtime& runtime, int) {
    std::vector<Tensor> tensors(20, tensor({1, 2}));
    std::vector<std::shared_ptr<HandleState>> handles;
    for (size_t i = 0; i < tensors.size(); ++i) {
      handles.push_back(runtime.submit(submission("t" + std::to_string(i), tensors[i])));
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    for (const auto& handle : handles) {
      ASSERT_TRUE(handle->finished());
      EXPECT_EQ(error_of(*handle), "");
    }
    for (const Tensor& each : tensors) EXPECT_THAT(each.data, ElementsAre(2, 4));
  });
}

TEST(Runtime, AWaitWithATimeoutGivesUpAloneAndTheCollectiveGoesOn) {
  World world(2);
  std::atomic<bool> timed_out{false};
  world.each([&](Runtime& runtime, int rank) {
    Tensor x = tensor({1});
    if (rank == 1) {
      while (!timed_out) std::this_thread::sleep_for(1ms);
    }
    const auto handle = runtime.submit(submission("x", x));
    if (rank == 0) {
      EXPECT_FALSE(handle->wait(5ms));
      timed_out = true;
    }
    EXPECT_EQ(error_of(*handle), "");
    EXPECT_THAT(x.data, ElementsAre(2));
  });
}

TEST(Runtime, AFailedOpEndsTheJobOnAllRanksWithOneError) {
  World world(3, {.fail_op_at_sequence = 1});
  world.each([](Runtime& runtime, int) {
    // The runtime keeps the memory to which a failed collective may still write.
    const auto x = std::make_shared<Tensor>(tensor({1}));
    const auto submit = [&](const char* name) {
      Submission mine = submission(name, *x);
      mine.keep_alive = x;
      return runtime.submit(std::move(mine));
    };
    EXPECT_EQ(error_of(*submit("ok")), "");
    const auto broken = submit("broken");
    EXPECT_THAT(error_of(*broken), HasSubstr("fake network is down"));
    EXPECT_THROW(
        {
          for (;;) error_of(*submit("later"));
        },
        Error);
    EXPECT_NE(runtime.fatal_error(), nullptr);
  });
}

TEST(Runtime, AStallEndsTheJobWhenToldToAndNamesTheMissing) {
  Config config = no_limits();
  config.stall_abort_s = 0.05;
  World world(2, {}, config);
  world.each([](Runtime& runtime, int rank) {
    Tensor x = tensor({1});
    if (rank == 1) {
      while (runtime.fatal_error() == nullptr) std::this_thread::sleep_for(1ms);
    } else {
      EXPECT_THAT(error_of(*runtime.submit(submission("x", x))), HasSubstr("waiting for rank 1"));
    }
    EXPECT_EQ(runtime.fatal_error()->code(), ErrorCode::Stall);
  });
}

TEST(Runtime, AStallReportReachesTheRanksThatWait) {
  Config config = no_limits();
  config.stall_warn_s = 0.05;
  World world(3, {}, config);
  std::atomic<bool> reported{false};
  world.each([&](Runtime& runtime, int rank) {
    Tensor x = tensor({1});
    if (rank == 2) {
      while (!reported) std::this_thread::sleep_for(1ms);
    }
    const auto handle = runtime.submit(submission("x", x));
    if (rank == 1) {
      wait_for_report(runtime, "waiting for rank 2");
      reported = true;
    }
    EXPECT_EQ(error_of(*handle), "");
    EXPECT_EQ(runtime.stall_report(), "") << "a later timeout must not blame what has completed";
  });
}

TEST(Runtime, AbsentEverywhereIsUnusedAndSomewhereIsProduced) {
  World world(2);
  world.each([](Runtime& runtime, int rank) {
    Tensor x = tensor({1.0F + static_cast<float>(rank), 0});
    x.spec->parts = {{"a", {1}}, {"b", {1}}};
    Submission some = submission("some", x);
    some.absent = {rank == 1, true};
    const auto handle = runtime.submit(std::move(some));
    EXPECT_EQ(error_of(*handle), "");
    EXPECT_THAT(handle->outcome().produced, ElementsAre(true, false));
    Tensor y = tensor({7});
    Submission none = submission("none", y);
    none.absent = {true};
    const auto unused = runtime.submit(std::move(none));
    EXPECT_EQ(error_of(*unused), "");
    EXPECT_TRUE(unused->outcome().unused);
    EXPECT_THAT(y.data, ElementsAre(7));
  });
}

TEST(Runtime, AllgatherOfUnevenRowsAndManyThreadsSubmitting) {
  World world(3);
  world.each([](Runtime& runtime, int rank) {
    Tensor x = tensor(std::vector<float>(static_cast<size_t>(rank), 1.0F * rank),
                      CollectiveKind::Allgather);
    std::vector<float> out;
    Submission gather = submission("rows", x);
    gather.allocate_output = [&](size_t, int64_t elements, MemoryQueue&) {
      out.resize(static_cast<size_t>(elements));
      return reinterpret_cast<std::byte*>(out.data());
    };
    const auto handle = runtime.submit(std::move(gather));
    EXPECT_EQ(error_of(*handle), "");
    EXPECT_THAT(out, ElementsAre(1, 2, 2));
    EXPECT_THAT(handle->outcome().received, ElementsAre(0, 1, 2));

    std::vector<std::thread> producers;
    for (int producer = 0; producer < 3; ++producer) {
      producers.emplace_back([&runtime, producer] {
        for (int i = 0; i < 50; ++i) {
          Tensor mine = tensor({1});
          const std::string name = std::to_string(producer) + "." + std::to_string(i % 5);
          EXPECT_EQ(error_of(*runtime.submit(submission(name, mine))), "");
          EXPECT_THAT(mine.data, ElementsAre(3));
        }
      });
    }
    for (std::thread& producer : producers) producer.join();
  });
}

}  // namespace
}  // namespace horon::core

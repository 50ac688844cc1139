// Training in which each rank has a device with a thread of its own: handles finish when the work
// is enqueued.
#include <array>
#include <atomic>
#include <barrier>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using test::FakeMemory;
using test::FakeQueue;
using test_world::error_of;
using test_world::no_limits;
using test_world::submission;
using test_world::Tensor;
using test_world::tensor;
using test_world::World;
using testing::HasSubstr;

// Steps with a few tensors, in another order on each rank. The program's own stream writes the
// tensors, waits for the results and reads them; its thread never waits for the device.
TEST(QueuedMemory, ATrainingWaitsNeverOnTheHost) {
  constexpr int ranks = 3, steps = 40;
  constexpr size_t tensors = 5;
  World world(ranks, {.op_polls = 1, .copy_polls = 3});
  world.each([&](Runtime& runtime, int rank) {
    FakeQueue program(world.device(rank));
    std::array<Tensor, tensors> x;
    for (Tensor& each : x) each = tensor({0, 0});
    std::vector<float> sums(steps);
    for (int step = 0; step < steps; ++step) {
      std::vector<std::shared_ptr<HandleState>> handles;
      for (size_t i = 0; i < tensors; ++i) {
        Tensor& mine = x[(i + static_cast<size_t>(rank)) % tensors];
        program.run([&mine, step, rank] { mine.data = {1.0F * rank, 1.0F * step}; });
        Submission given = submission("t" + std::to_string(&mine - x.data()), mine);
        given.ready = program.record_ready();
        handles.push_back(runtime.submit(std::move(given)));
      }
      for (const auto& handle : handles) {
        ASSERT_TRUE(program.wait_for(*handle->get_enqueued().done));
      }
      program.run([&x, &sum = sums[static_cast<size_t>(step)]] {
        for (const Tensor& each : x) sum += each.data[0] + 10 * each.data[1];
      });
    }
    EXPECT_EQ(world.device(rank).host_waits(), 0);
    const auto end = program.record();
    end->wait();
    EXPECT_EQ(world.device(rank).host_waits(), 1);
    for (int step = 0; step < steps; ++step) {
      EXPECT_EQ(sums[static_cast<size_t>(step)], tensors * (3.0F + 10 * 3.0F * step)) << step;
    }
  });
}

// The device does nothing for a long time. Still, each handle finishes, negotiated or frozen,
// before the program submits the next: enqueued work does not block.
TEST(QueuedMemory, NoHandleWaitsForTheDevice) {
  std::atomic<bool> go{false};  // before the world: threads of its devices look at it
  World world(2, {}, no_limits());
  world.each([&](Runtime& runtime, int rank) {
    FakeQueue program(world.device(rank));
    program.enqueue({[&] { return go.load(); }, nullptr});
    std::vector<std::shared_ptr<Tensor>> tensors;
    std::vector<std::shared_ptr<HandleState>> handles;
    const auto enqueue = [&](const std::string& name, const std::shared_ptr<Tensor>& x) {
      Submission given = submission(name, *x);
      given.ready = program.record_ready();
      given.keep_alive = x;
      handles.push_back(runtime.submit(std::move(given)));
      EXPECT_TRUE(handles.back()->wait(kLongEnough)) << name;
      return !testing::Test::HasFailure();
    };
    for (int i = 0; i < 16; ++i) {
      tensors.push_back(std::make_shared<Tensor>(tensor({1})));
      if (!enqueue(i < 6 ? "t" + std::to_string(i) : "again", tensors.back())) break;
    }
    go = true;
    for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
    for (const auto& x : tensors) EXPECT_EQ(x->data[0], 2);
  });
}

// The device reads and writes the tensor long after the handle has finished.
TEST(QueuedMemory, IsOwnedUntilTheDeviceHasDoneTheWork) {
  std::atomic<bool> go{false};
  World world(2);
  std::barrier<> both_have_looked(2);
  world.each([&](Runtime& runtime, int rank) {
    FakeQueue program(world.device(rank));
    program.enqueue({[&] { return go.load(); }, nullptr});  // the producer takes its time
    auto x = std::make_shared<Tensor>(tensor({1}));
    const std::weak_ptr<Tensor> watched = x;
    Submission given = submission("x", *x);
    given.ready = program.record_ready();
    given.keep_alive = std::move(x);
    const auto handle = runtime.submit(std::move(given));
    (void)handle->get_enqueued();
    EXPECT_FALSE(handle->outcome().done->happened());
    runtime.release_finished();
    EXPECT_FALSE(watched.expired()) << "nothing has happened yet";
    both_have_looked.arrive_and_wait();
    go = true;
    EXPECT_EQ(error_of(*handle), "");
    // The loop notices a moment after the device has done the work.
    const auto limit = std::chrono::steady_clock::now() + kLongEnough;
    while (!watched.expired() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      runtime.release_finished();
    }
    EXPECT_TRUE(watched.expired());
  });
}

// get_enqueued() does not wait for the device, get() does.
TEST(QueuedMemory, GetWaitsForTheDeviceAndGetEnqueuedDoesNot) {
  std::atomic<bool> go{false};
  World world(2);
  std::barrier<> both_have_it(2);
  world.each([&](Runtime& runtime, int rank) {
    FakeQueue program(world.device(rank));
    program.enqueue({[&] { return go.load(); }, nullptr});
    Tensor x = tensor({1});
    Submission given = submission("x", x);
    given.ready = program.record_ready();
    const auto handle = runtime.submit(std::move(given));
    const Outcome& enqueued = handle->get_enqueued();
    ASSERT_NE(enqueued.done, nullptr);
    EXPECT_FALSE(enqueued.done->happened());
    EXPECT_EQ(enqueued.contributors, 2);
    both_have_it.arrive_and_wait();
    EXPECT_EQ(world.device(rank).host_waits(), 0);
    go = true;
    EXPECT_EQ(&handle->get(), &enqueued);
    EXPECT_TRUE(enqueued.done->happened());
    EXPECT_EQ(x.data[0], 2);
    EXPECT_EQ(world.device(rank).host_waits(), 1);
  });
}

// One rank has its tensor on another device. The call is refused there, the other ranks learn why,
// and the job goes on.
TEST(QueuedMemory, ATensorOfAnotherDeviceIsRefused) {
  World world(2, {.device_index = 1});
  world.each([&](Runtime& runtime, int rank) {
    const auto error_on_device = [&](const std::string& name, int index) -> std::string {
      const auto x = std::make_shared<Tensor>(tensor({1}));
      Submission given = submission(name, *x);
      given.keep_alive = x;
      given.device_index = index;
      try {
        return error_of(*runtime.submit(std::move(given)));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::InvalidArgument);
        return error.what();
      }
    };
    const std::string where = rank == 1 ? "tensor \"x\"" : "tensor \"x\" was refused on rank 1";
    EXPECT_EQ(error_on_device("x", rank == 0 ? 1 : 0),
              where + ": it is on host:0, but rank 1 works on host:1; move it there");
    EXPECT_EQ(error_on_device("y", 1), "");
    Tensor on_cuda = tensor({1});
    on_cuda.spec->device = DeviceKind::Cuda;
    try {
      (void)runtime.submit(submission("z", on_cuda));
      ADD_FAILURE() << "nothing in this world is cuda memory";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("this job can't use"));
    }
  });
}

// The handles have finished, and their work on the device never will: a thread that waits for it on
// the host gets the cause.
TEST(QueuedMemory, AFailureBehindAFinishedHandleIsHeardByWhoWaits) {
  std::atomic<bool> go{false};
  World world(2, {.fail_op_at_sequence = 1}, no_limits());
  world.each([&](Runtime& runtime, int rank) {
    FakeQueue program(world.device(rank));
    program.enqueue({[&] { return go.load(); }, nullptr});
    std::vector<std::shared_ptr<HandleState>> handles;
    const auto submit = [&](const char* name, std::unique_ptr<Event> ready) {
      const auto x = std::make_shared<Tensor>(tensor({1}));
      Submission given = submission(name, *x);
      given.ready = std::move(ready);
      given.keep_alive = x;
      handles.push_back(runtime.submit(std::move(given)));
    };
    submit("ok", nullptr);
    EXPECT_EQ(error_of(*handles[0]), "");
    handles.clear();
    submit("fails", program.record_ready());
    try {
      submit("behind it", nullptr);
    } catch (const Error& error) {  // the job has ended already
      EXPECT_THAT(error.what(), HasSubstr("fake network is down"));
    }
    for (const auto& handle : handles) {
      EXPECT_THAT(error_of(*handle), HasSubstr("fake network is down"));
      try {  // also from now on, although the handle had finished before
        (void)handle->get_enqueued();
        ADD_FAILURE() << "a failure that is known is told";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("fake network is down"));
      }
    }
    go = true;
  });
}

// Shutdown waits for enqueued work.
TEST(QueuedMemory, ShutdownDrainsTheDevice) {
  World world(2, {.copy_polls = 200});
  world.each([&](Runtime& runtime, int) {
    std::vector<Tensor> x(10, tensor({1}));
    for (size_t i = 0; i < x.size(); ++i) {
      (void)runtime.submit(submission("t" + std::to_string(i), x[i]));
    }
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    for (const Tensor& each : x) EXPECT_EQ(each.data[0], 2);
  });
}

// An event that lets a test act while a thread waits for it.
class ActingEvent final : public Event {
 public:
  explicit ActingEvent(std::function<void()> act) : act_(std::move(act)) {}
  bool happened() override { return false; }
  void wait() override { act_(); }

 private:
  const std::function<void()> act_;
};

std::string error_of_get(const std::function<void(HandleState&)>& while_waiting, bool enqueued) {
  HandleState handle;
  Outcome outcome;
  outcome.done = std::make_shared<ActingEvent>([&] { while_waiting(handle); });
  handle.finish(std::move(outcome));
  if (enqueued) while_waiting(handle);
  try {
    (void)(enqueued ? handle.get_enqueued() : handle.get());
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

// An abort lets the event happen all the same, without a valid result.
TEST(QueuedMemory, WhatFailsBehindAHandleIsTheErrorOfWhoeverAsksForTheResult) {
  const auto fail = [](HandleState& handle) {
    handle.fail_enqueued(Error(ErrorCode::PeerDead, "the cause"));
  };
  const auto fail_with_the_device = [&](HandleState& handle) {
    fail(handle);
    throw Error(ErrorCode::OperationFailed, "the device has failed");
  };
  EXPECT_EQ(error_of_get([](HandleState&) {}, false), "");
  EXPECT_EQ(error_of_get(fail, false), "the cause");
  EXPECT_EQ(error_of_get(fail_with_the_device, false), "the cause");
  EXPECT_EQ(error_of_get(fail, true), "the cause");
}

}  // namespace
}  // namespace horon::core

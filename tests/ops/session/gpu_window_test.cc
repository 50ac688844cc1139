// The window of a process set on GPUs: packed tensors are in memory that is registered with NCCL,
// on all ranks or on none.
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/gpu_session_support.h"
#include "horon/tests/support/long_enough.h"

namespace horon::gpu_session {
namespace {

using testing::IsEmpty;

class GpuWindow : public GpuSession {
 protected:
  void start_with_fault(test::WindowFault fault, int on_rank) {
    test::HostGpuLibraries::Options options;
    if (test_rank() == on_rank) options.nccl.window_fault = fault;
    start(options);
  }
  const test::HostWindowMemory& windows() const { return libraries_->opened_nccl()->windows(); }

  // Packed on every rank, since it travels in 16 bits.
  static Handle allreduce_packed(const ProcessSet& set, const std::string& name,
                                 const Floats& data) {
    auto spec = spec_of(CollectiveKind::Allreduce, data->size(), DeviceKind::Cuda);
    spec->compression = Compression::BFloat16;
    return ops::runtime().submit(submission_of(set, name, std::move(spec), data));
  }
  void reduce_packed(int times, const ProcessSet& set = {}) {
    for (int i = 0; i < times; ++i) {
      const Floats data = floats(1000, mine());
      (void)allreduce_packed(set, "packed", data)->get();
      ASSERT_THAT(*data, AllAre(sum_of(set)));
    }
  }
  // Separate threads free memory, and end a communicator that was lost.
  void wait_until_nothing_is_kept() const {
    const auto limit = std::chrono::steady_clock::now() + kLongEnough;
    while (windows().live() > 0 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  void end_and_look() {
    const auto nccl = libraries_->opened_nccl();
    shutdown();
    wait_until_nothing_is_kept();
    EXPECT_THAT(nccl->windows().complaints(), IsEmpty());
    EXPECT_EQ(nccl->windows().registered(), 0);
    EXPECT_EQ(nccl->windows().live(), 0);
  }
};

TEST_F(GpuWindow, PackedTensorsLieInItFromTheSecondBatchOn) {
  start();
  reduce_packed(5);
  const bool alone = size() == 1;  // there is no other rank
  EXPECT_EQ(windows().live(), alone ? 0 : 1);
  EXPECT_EQ(windows().registered(), alone ? 0 : 1);
  EXPECT_EQ(windows().collectives_in_windows(), alone ? 0 : 4);
  end_and_look();
}

TEST_F(GpuWindow, ThereIsNoneForTensorsThatAreNotPacked) {
  start();
  for (int i = 0; i < 3; ++i) {
    const Floats data = floats(1000, mine());
    (void)allreduce({}, "x", data)->get();
    EXPECT_THAT(*data, AllAre(sum_of({})));
  }
  EXPECT_EQ(windows().live(), 0);
  end_and_look();
}

TEST_F(GpuWindow, ThereIsNoneWhereItIsSwitchedOffOrNcclIsOld) {
  start({}, {{"HORON_NCCL_REGISTER", "off"}});
  reduce_packed(3);
  EXPECT_EQ(windows().live(), 0);
  end_and_look();
  test::HostGpuLibraries::Options old;
  old.nccl.has_windows = false;
  start(old);
  reduce_packed(3);
  EXPECT_EQ(windows().live(), 0);
  end_and_look();
}

// Otherwise NCCL would hang, or sum the wrong bytes; HostNccl reports this.
TEST_F(GpuWindow, AllRanksPackAtTheSamePlaceOrInNoWindow) {
  test::HostGpuLibraries::Options options;
  options.cuda.delay_us_max = test_rank() * 300;
  start(options);
  for (int round = 0; round < 20; ++round) {
    std::vector<Handle> handles;
    std::vector<Floats> data;
    for (size_t i = 0; i < 12; ++i) {
      data.push_back(floats(i % 4 == 0 ? 40'000 + i : 10 + i, mine()));
      // Each rank submits them at moments of its own.
      if (i % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(test_rank() * 200));
      const std::string name = "x" + std::to_string(i);
      handles.push_back(i % 3 == 0 ? allreduce_packed({}, name, data.back())
                                   : allreduce({}, name, data.back()));
    }
    for (const Handle& handle : handles) (void)handle->get();
    for (const Floats& each : data) ASSERT_THAT(*each, AllAre(sum_of({})));
  }
  EXPECT_GE(windows().collectives_in_windows(), size() > 1 ? 20 : 0);
  end_and_look();
}

// A rank that has joined uses scratch where the others may use their tensor.
TEST_F(GpuWindow, ARankThatHasJoinedDoesAsTheOthers) {
  start();
  reduce_packed(2);
  if (rank() > 0) {
    EXPECT_GE(join(), 0);
  } else {
    for (int i = 0; i < 4; ++i) {
      const Floats packed = floats(100, 3);
      const Floats as_it_is = floats(100, 5);
      (void)allreduce_packed({}, "packed alone", packed)->get();
      (void)allreduce({}, "as it is", as_it_is)->get();
      EXPECT_THAT(*packed, AllAre(3.0F));
      EXPECT_THAT(*as_it_is, AllAre(5.0F));
    }
    EXPECT_GE(join(), 0);
  }
  reduce_packed(1);
  end_and_look();
}

TEST_F(GpuWindow, WithoutMemoryOrAWindowOnOneRankThereIsNone) {
  for (const test::WindowFault fault : {test::WindowFault::NoMemory, test::WindowFault::NoWindow}) {
    for (const int rank : {0, test_size() - 1}) {
      start_with_fault(fault, rank);
      reduce_packed(4);
      EXPECT_EQ(windows().collectives_in_windows(), 0);
      wait_until_nothing_is_kept();  // the others give back theirs at once
      EXPECT_EQ(windows().live(), 0);
      end_and_look();
    }
  }
}

// The others wait in NCCL for the rank that fails, or have their window already. Work that was
// enqueued before still ends, on all ranks.
TEST_F(GpuWindow, WhereNcclFailsTheJobGoesOnWithAnotherCommunicator) {
  for (const test::WindowFault fault : {test::WindowFault::Fails, test::WindowFault::FailsLast}) {
    for (const int rank : {0, test_size() - 1}) {
      start_with_fault(fault, rank);
      const Floats before = floats(50'000, mine());
      const Handle earlier = allreduce({}, "before", before);
      reduce_packed(4);
      (void)earlier->get();
      EXPECT_THAT(*before, AllAre(sum_of({})));
      EXPECT_EQ(windows().collectives_in_windows(), 0);
      end_and_look();
    }
  }
}

TEST_F(GpuWindow, EachSetHasItsOwn) {
  start();
  const ProcessSet even_ranks = add_process_set([] {
    std::vector<int> ranks;
    for (int rank = 0; rank < test_size(); rank += 2) ranks.push_back(rank);
    return ranks;
  }());
  reduce_packed(3);
  const bool in_set = rank() % 2 == 0;
  if (in_set) reduce_packed(3, even_ranks);
  const int sets = (size() > 1 ? 1 : 0) + (in_set && even_ranks.size() > 1 ? 1 : 0);
  EXPECT_EQ(windows().registered(), sets);
  EXPECT_EQ(windows().collectives_in_windows(), 2 * sets);
  remove_process_set(even_ranks);
  reduce_packed(1);
  EXPECT_EQ(windows().live(), size() > 1 ? 1 : 0);
  end_and_look();
}

// Freed memory can't be accessed any more: the process would end.
TEST_F(GpuWindow, ItIsNotFreedWhileWorkUsesIt) {
  start();
  reduce_packed(2);
  device().slow_down([](ops::CudaStream) { return true; }, 3000);
  std::vector<Floats> data;
  std::vector<Handle> handles;
  for (int i = 0; i < 6; ++i) {
    data.push_back(floats(1000, mine()));
    handles.push_back(allreduce_packed({}, "late " + std::to_string(i), data.back()));
  }
  for (const Handle& handle : handles) (void)handle->get_enqueued();
  const float sum = sum_of({});
  end_and_look();
  for (const Floats& each : data) EXPECT_THAT(*each, AllAre(sum));
}

}  // namespace
}  // namespace horon::gpu_session

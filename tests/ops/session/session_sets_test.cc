// Process sets of a session: what they run on, and what they leave behind.
#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <random>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/open_descriptors.h"

namespace horon {
namespace {

// One allreduce (sum) of this rank's number + 1 in each of `count` elements.
class Sum {
 public:
  Sum(const ProcessSet& set, const std::string& name, int64_t count, bool shareable) : set_(set) {
    const auto bytes = static_cast<size_t>(count) * sizeof(float);
    memory_ = shareable ? ops::allocate_host(bytes)
                        : std::shared_ptr<std::byte>(new std::byte[bytes],
                                                     std::default_delete<std::byte[]>());
    data_ = {reinterpret_cast<float*>(memory_.get()), static_cast<size_t>(count)};
    std::ranges::fill(data_, static_cast<float>(rank() + 1));
    auto spec = std::make_shared<core::EntrySpec>();
    spec->parts = {{name, {count}}};
    core::Submission submission;
    submission.set = set.id();
    submission.name = name;
    submission.spec = std::move(spec);
    submission.memory = {{memory_.get(), memory_.get(), count}};
    submission.keep_alive = memory_;
    handle_ = ops::runtime().submit(std::move(submission));
  }

  void check() {
    (void)handle_->get();
    float expected = 0;
    for (const int member : set_.ranks()) expected += static_cast<float>(member + 1);
    EXPECT_EQ(std::ranges::count(data_, expected), std::ssize(data_));
  }

 private:
  ProcessSet set_;
  std::shared_ptr<std::byte> memory_;
  std::span<float> data_;
  std::shared_ptr<core::HandleState> handle_;
};

bool is_on_one_host(const ProcessSet& set) {
  const std::vector<int>& host_of = ops::runtime().topology().host_of;
  const std::vector<int> ranks = set.ranks();
  return std::ranges::all_of(ranks, [&](int member) {
    return host_of[static_cast<size_t>(member)] == host_of[static_cast<size_t>(ranks.front())];
  });
}

std::vector<int> ranks_of(int bits) {
  std::vector<int> ranks;
  for (int rank = 0; rank < test_size(); ++rank) {
    if ((bits >> rank & 1) != 0) ranks.push_back(rank);
  }
  return ranks;
}

struct Holdings {
  int descriptors = 0;
  int mappings = 0;  // of memory that processes share
};

Holdings holdings() {
  Holdings held;
  held.descriptors = test::open_descriptors();
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:horon") != std::string::npos) ++held.mappings;
  }
  return held;
}

class SessionSets : public testing::Test {
 protected:
  void SetUp() override { init_session(); }
  void TearDown() override { shutdown(); }
};

TEST_F(SessionSets, UseSharedMemoryOnOneHost) {
  for (int bits = 1; bits < 1 << test_size(); ++bits) {
    const ProcessSet set = add_process_set(ranks_of(bits));
    if (set.includes_me()) {
      EXPECT_EQ(ops::explain_selection(set).front(),
                is_on_one_host(set) ? "shm_allreduce: chosen" : "hier_allreduce: chosen");
      for (const int64_t count : {1, 700, 3000, 400'000}) {
        for (const bool shareable : {true, false}) Sum(set, "sum", count, shareable).check();
      }
    } else {
      EXPECT_THROW(ops::explain_selection(set), Error);
    }
    remove_process_set(set);
    EXPECT_THROW(ops::explain_selection(set), Error);
  }
}

// The rank has ops of the set that was made before.
TEST_F(SessionSets, HaveNoOpsOnARankThatIsNotInThem) {
  const ProcessSet all = add_process_set(ProcessSet().ranks());
  const ProcessSet first = add_process_set({0});
  EXPECT_FALSE(ops::explain_selection(all).empty());
  if (!first.includes_me()) {
    EXPECT_THAT(test::error_of([&] { (void)ops::explain_selection(first); }),
                testing::HasSubstr("this rank is not in process set"));
  }
}

TEST_F(SessionSets, WorkAtTheSameTime) {
  std::vector<ProcessSet> mine = {ProcessSet()};
  std::vector<ProcessSet> all;
  for (int bits = 1; bits < 1 << test_size(); ++bits) {
    all.push_back(add_process_set(ranks_of(bits)));
    if (all.back().includes_me()) mine.push_back(all.back());
  }
  std::mt19937_64 random(static_cast<uint64_t>(rank()));
  constexpr std::array<int64_t, 3> kCounts = {5, 2500, 100'000};
  for (int round = 0; round < 5; ++round) {
    std::vector<Sum> running;
    std::ranges::shuffle(mine, random);  // no two ranks begin in the same order
    for (size_t i = 0; i < kCounts.size(); ++i) {
      for (const ProcessSet& set : mine) {
        // One memory for all sets: a bucket may be reduced in any of them.
        running.emplace_back(set, "sum " + std::to_string(i), kCounts[i], (round + i) % 2 == 0);
      }
    }
    std::ranges::shuffle(running, random);
    for (Sum& sum : running) sum.check();
  }
  for (const ProcessSet& set : all) remove_process_set(set);
}

TEST_F(SessionSets, LeaveNothingBehind) {
  const auto make_use_remove = [] {
    const ProcessSet most = add_process_set(ranks_of((1 << test_size()) - 2));
    const ProcessSet all = add_process_set(ranks_of((1 << test_size()) - 1));
    if (most.includes_me()) Sum(most, "sum", 700, false).check();
    Sum(all, "sum", 400'000, false).check();
    remove_process_set(all);
    remove_process_set(most);
  };
  for (int i = 0; i < 5; ++i) make_use_remove();  // what is kept for reuse is there now
  const Holdings before = holdings();
  for (int i = 0; i < 50; ++i) make_use_remove();
  const Holdings after = holdings();
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.mappings, before.mappings);
  EXPECT_EQ(process_sets().size(), 1U);
}

// A program may make and remove sets for as long as it runs.
TEST_F(SessionSets, LeaveNoCounts) {
  ops::CallCounts& counts = ops::call_counts();
  const ProcessSet everybody = add_process_set(ProcessSet().ranks());
  const uint32_t id = everybody.id();
  EXPECT_EQ(counts.next_object("object", id), 0U);
  (void)join(everybody);
  EXPECT_EQ(counts.times_forgotten(id), 1U);
  barrier_async(everybody).wait();
  remove_process_set(everybody);
  EXPECT_EQ(counts.next("barrier", id), 0U);
  EXPECT_EQ(counts.next_object("object", id), 0U);
  EXPECT_EQ(counts.times_forgotten(id), 1U) << "what outlives the set has seen no other join()";
  const ProcessSet alone = add_process_set_among({rank()}, 7);
  barrier_async(alone).wait();
  leave_process_set(alone);
  EXPECT_EQ(counts.next("barrier", alone.id()), 0U);
}

TEST_F(SessionSets, AreListedWhileOneIsMade) {
  std::atomic<bool> begun{false};
  std::thread adding;
  if (rank() == 0) {
    adding = std::thread([&] {
      begun = true;
      begun.notify_one();
      (void)add_process_set({0});  // waits for the other ranks
    });
    begun.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(process_sets().size(), 1U);
  }
  barrier();  // after this the others come
  if (rank() == 0) {
    adding.join();
  } else {
    (void)add_process_set({0});
  }
  EXPECT_EQ(process_sets().size(), 2U);
}

// To make or remove a set needs every rank, and a rank that has joined does not take part.
// Afterwards all ranks number the sets alike.
TEST_F(SessionSets, AreNotMadeOrRemovedWhileARankHasJoined) {
  const int last = test_size() - 1;
  const ProcessSet before = add_process_set({0, last});
  if (rank() != last) {
    const auto error_of = [](const std::function<void()>& call) -> std::string {
      try {
        call();
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::RankLeft);
        return error.what();
      }
      return "";
    };
    const auto names_who = testing::HasSubstr("rank " + std::to_string(last) + " has joined");
    EXPECT_THAT(error_of([] { (void)add_process_set({0, 1}); }), names_who);
    EXPECT_THAT(error_of([&] { remove_process_set(before); }), names_who);
    EXPECT_THAT(error_of([] { (void)add_even_odd_process_set(); }), names_who);
    if (rank() < 2) {
      const ProcessSet alone = add_process_set_among({0, 1}, 1);
      Sum(alone, "sum", 10, false).check();
    }
  }
  join();
  const ProcessSet after = add_process_set({0, last});
  for (const ProcessSet& set : {before, after}) {
    if (set.includes_me()) Sum(set, "sum", 10, false).check();
    remove_process_set(set);
  }
}

// The others wait for that rank when it finds its mistake.
TEST_F(SessionSets, AWrongListOfOneRankIsAnErrorOfAll) {
  const std::vector<int> ranks = rank() == 1 ? std::vector{0, 99} : std::vector{0, 1};
  try {
    (void)add_process_set(ranks);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("its ranks must be 0 to"));
  }
  const ProcessSet set = add_process_set({0, 1});
  if (set.includes_me()) Sum(set, "sum", 10, false).check();
}

// The end of the session ends an add_process_set() in which another thread waits.
TEST(SessionSetsEnd, WaitsForNobody) {
  init_session();
  std::atomic<bool> begun{false};
  std::thread adding;
  if (rank() == 0) {
    adding = std::thread([&] {
      begun = true;
      begun.notify_one();
      EXPECT_THROW((void)add_process_set({0}), Error);
    });
    begun.wait(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  shutdown();
  if (adding.joinable()) adding.join();
}

}  // namespace
}  // namespace horon

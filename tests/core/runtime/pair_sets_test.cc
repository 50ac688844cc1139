// Messages from rank to rank, in sets of two ranks that no program makes.
#include "horon/core/runtime/pair_sets.h"

#include <latch>
#include <numeric>
#include <sys/mman.h>

#include <gmock/gmock.h>

#include "horon/tests/core/runtime/runtime_world.h"

namespace horon::core {
namespace {

using namespace std::chrono_literals;
using namespace test_world;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::shared_ptr<HandleState> message(Runtime& runtime, int from, int to, const std::string& name,
                                     Tensor& tensor) {
  tensor.spec->kind = CollectiveKind::Broadcast;
  tensor.spec->root = from;
  Submission out = submission(name, tensor);
  out.set = pair_set(from, to, runtime.topology().size);
  return runtime.submit(std::move(out));
}

TEST(PairSets, AreNumberedByTheirRanks) {
  for (int size = 2; size < 6; ++size) {
    std::vector<uint32_t> numbers;
    for (int low = 0; low < size; ++low) {
      for (int high = low + 1; high < size; ++high) {
        const uint32_t number = pair_set(high, low, size);
        EXPECT_TRUE(is_pair_set(number));
        EXPECT_EQ(number, pair_set(low, high, size));
        EXPECT_THAT(members_of_pair(number, size), ElementsAre(low, high));
        EXPECT_THAT(numbers, testing::Not(testing::Contains(number)));
        numbers.push_back(number);
      }
    }
    EXPECT_THROW((void)pair_set(1, 1, size), Error);
    EXPECT_THROW((void)pair_set(0, size, size), Error);
    EXPECT_THROW((void)pair_set(-1, 0, size), Error);
  }
  EXPECT_THROW((void)pair_set(0, 1, 46341), Error);
  EXPECT_THAT(members_of_pair(pair_set(46338, 46339, 46340), 46340), ElementsAre(46338, 46339));
  EXPECT_THAT(members_of_pair(7, 4), IsEmpty());
  EXPECT_THAT(members_of_pair(kFirstPairSet, 4), IsEmpty());
  EXPECT_THAT(members_of_pair(~uint32_t{0}, 4), IsEmpty());
}

// All ranks send before any rank receives: no send may block the next call.
TEST(PairSets, EveryRankSendsToEveryOther) {
  for (const int size : {2, 5}) {
    World world(size, {.op_polls = 1});
    world.each([&](Runtime& runtime, int me) {
      for (int round = 0; round < 6; ++round) {
        std::vector<std::shared_ptr<HandleState>> handles;
        std::vector<Tensor> sent(static_cast<size_t>(size)), received(static_cast<size_t>(size));
        const auto name = [&](int from) { return "from " + std::to_string(from); };
        for (int to = 0; to < size; ++to) {
          if (to == me) continue;
          sent[static_cast<size_t>(to)] = tensor({1.0F * me, 1.0F * to, 1.0F * round});
          handles.push_back(message(runtime, me, to, name(me), sent[static_cast<size_t>(to)]));
        }
        for (int from = size - 1; from >= 0; --from) {
          if (from == me) continue;
          received[static_cast<size_t>(from)] = tensor({-1, -1, -1});
          handles.push_back(
              message(runtime, from, me, name(from), received[static_cast<size_t>(from)]));
        }
        for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
        for (int from = 0; from < size; ++from) {
          if (from == me) continue;
          EXPECT_THAT(received[static_cast<size_t>(from)].data,
                      ElementsAre(1.0F * from, 1.0F * me, 1.0F * round));
        }
      }
    });
  }
}

// The program may read a tensor while it is sent, and the tensor may be in read-only memory. Two
// parts are packed.
TEST(PairSets, WhatIsSentIsNotWritten) {
  constexpr size_t kPage = 65536;  // a multiple of every size of a page
  void* const page =
      mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* const sent = static_cast<float*>(page);
  std::iota(sent, sent + 5, 1.0F);
  ASSERT_EQ(mprotect(page, kPage, PROT_READ), 0);
  {
    World world(2);
    world.each([&](Runtime& runtime, int me) {
      Tensor received = tensor({0, 0, 0, 0, 0}, CollectiveKind::Broadcast);
      received.spec->parts = {{"x", {2}}, {"y", {3}}};
      Submission out = submission("letter", received);
      out.set = pair_set(0, 1, 2);
      float* const data = me == 0 ? sent : received.data.data();
      auto* const first = reinterpret_cast<std::byte*>(data);
      auto* const second = reinterpret_cast<std::byte*>(data + 2);
      out.memory = {{first, first, 2}, {second, second, 3}};
      EXPECT_EQ(error_of(*runtime.submit(std::move(out))), "");
      const std::vector<float> got(data, data + 5);
      EXPECT_THAT(got, ElementsAre(1, 2, 3, 4, 5));
    });
  }
  munmap(page, kPage);
}

TEST(PairSets, AMismatchIsToldToBothAndToNobodyElse) {
  World world(3);
  world.each([](Runtime& runtime, int me) {
    if (me == 2) return;
    Tensor x = tensor(std::vector<float>(me == 0 ? 3 : 4, 1));
    EXPECT_THAT(error_of(*message(runtime, 1, 0, "letter", x)),
                AllOf(HasSubstr("\"letter\""), HasSubstr("[3] on rank 0, [4] on rank 1")));
    Tensor again = tensor({2.0F * me});
    EXPECT_EQ(error_of(*message(runtime, 1, 0, "letter", again)), "");
    EXPECT_THAT(again.data, ElementsAre(2));
  });
}

TEST(PairSets, ARefusedCallFailsTheOtherRankToo) {
  World world(2);
  world.each([](Runtime& runtime, int me) {
    const uint32_t pair = pair_set(0, 1, 2);
    if (me == 1) return runtime.refuse("letter", "no good", pair);
    Tensor x = tensor({1});
    EXPECT_THAT(error_of(*message(runtime, 0, 1, "letter", x)),
                HasSubstr("refused on rank 1: no good"));
  });
}

TEST(PairSets, TextsNameASetAsTheProgramKnowsIt) {
  EXPECT_EQ(set_text(3), "process set 3");
  EXPECT_EQ(set_text(pair_set(0, 1, 3)), "the set of two ranks");
  EXPECT_EQ(set_text(kFirstNumberedSet + 5), "process set 5 (made by its members)");
  EXPECT_EQ(set_text(kFirstNumberedSet + kFirstGroupNumber), "group of torch.distributed 0");
}

TEST(PairSets, OnlyItsRanksAndOnlyMessages) {
  World world(3);
  world.each([](Runtime& runtime, int me) {
    Tensor x = tensor({1});
    Submission sum = submission("sum", x);
    sum.set = pair_set(0, 1, 3);
    const char* const expected =
        me == 2 ? "rank 2 is not in the set of two ranks"
                : "a pair of ranks sends and receives by broadcasts; this is allreduce";
    try {
      (void)runtime.submit(std::move(sum));
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(expected));
    }
  });
}

// The other rank has never heard of the pair when it leaves: nobody may wait for it in vain, nor
// may it leave before it has heard. Both directions, since the lower rank coordinates.
TEST(PairSets, WhatNobodyReceivesFailsWhenTheOtherLeaves) {
  for (const int lonely : {0, 1}) {
    for (int round = 0; round < 30; ++round) {
      World world(3);
      world.each([&](Runtime& runtime, int me) {
        Tensor x = tensor({1});
        std::shared_ptr<HandleState> handle;
        if (me == lonely) handle = message(runtime, lonely, 1 - lonely, "letter", x);
        EXPECT_EQ(runtime.shutdown(kLongEnough), "");
        if (handle == nullptr) return;
        EXPECT_THAT(error_of(*handle), HasSubstr("shut down without submitting it"));
      });
    }
  }
}

TEST(PairSets, AStalledMessageNamesWhoIsMissing) {
  Config config = no_limits();
  config.stall_warn_s = 0.05;
  World world(2, {}, config);
  std::latch reported(1);
  world.each([&](Runtime& runtime, int me) {
    Tensor x = tensor({1});
    if (me == 1) reported.wait();
    const auto handle = message(runtime, 0, 1, "letter", x);
    if (me == 0) {
      wait_for_report(runtime, "\"letter\"");
      EXPECT_THAT(runtime.stall_report(),
                  AllOf(HasSubstr("rank 1"), testing::Not(HasSubstr("process set"))));
      reported.count_down();
    }
    EXPECT_EQ(error_of(*handle), "");
  });
}

}  // namespace
}  // namespace horon::core

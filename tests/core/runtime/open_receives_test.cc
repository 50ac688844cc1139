// Messages that are received from any rank.
#include "horon/core/runtime/open_receives.h"

#include <atomic>
#include <barrier>
#include <latch>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/core/runtime/known_death.h"
#include "horon/tests/core/runtime/letters.h"

namespace horon::core::open_receives_test {
namespace {

using namespace test_world;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

TEST(OpenReceives, EveryLetterComesOnceAndInItsRound) {
  constexpr int kRounds = 40;  // the names are reused
  for (const int size : {2, 4}) {
    World world(size, {.op_polls = 1});
    std::barrier<> end_of_round(size);  // or a letter of the next round might come in this one
    world.each([&](Runtime& runtime, int me) {
      const auto letters = std::make_shared<Letters>(runtime);
      for (int round = 0; round < kRounds; ++round) {
        std::vector<Tensor> sent(static_cast<size_t>(size)), received(static_cast<size_t>(size));
        std::vector<std::shared_ptr<HandleState>> handles;
        std::vector<Letters::FromAny> open;
        std::set<int> sources;
        for (int i = 0; i + 1 < size; ++i) {
          received[static_cast<size_t>(i)] = tensor({-1, -1});
          open.push_back(letters->receive(received[static_cast<size_t>(i)]));
        }
        for (int to = 0; to < size; ++to) {
          if (to == me) continue;
          sent[static_cast<size_t>(to)] = tensor({1.0F * me, 1.0F * round});
          handles.push_back(letters->send(to, sent[static_cast<size_t>(to)]));
        }
        for (size_t i = 0; i < open.size(); ++i) {
          ASSERT_EQ(error_of(*open[i].handle), "");
          EXPECT_EQ(received[i].data[0], 1.0F * *open[i].source);
          EXPECT_EQ(received[i].data[1], 1.0F * round);
          sources.insert(*open[i].source);
        }
        for (const auto& handle : handles) EXPECT_EQ(error_of(*handle), "");
        EXPECT_EQ(sources.size(), open.size());
        end_of_round.arrive_and_wait();
      }
    });
  }
}

// Both directions, since the lower rank coordinates. The question may come before the letter or
// after it. A receive that names its rank takes the letter for which a receive from any rank has
// asked.
TEST(OpenReceives, AReceiveThatNamesItsRankGoesFirst) {
  for (const int receiver : {0, 1}) {
    for (const bool asked_first : {true, false}) {
      World world(2);
      std::latch asked(1), sent(1);
      world.each([&](Runtime& runtime, int me) {
        const auto letters = std::make_shared<Letters>(runtime);
        Tensor first = tensor({1}), second = tensor({2});
        if (me == receiver) {
          if (!asked_first) sent.wait();
          const auto open = letters->receive(first);
          const auto named = letters->receive(1 - me, second);
          asked.count_down();
          ASSERT_EQ(error_of(*named), "");
          ASSERT_EQ(error_of(*open.handle), "");
          EXPECT_EQ(first.data[0] + second.data[0], 30);
          EXPECT_TRUE(!asked_first || second.data[0] == 10);
        } else {
          if (asked_first) asked.wait();
          first = tensor({10});
          second = tensor({20});
          const auto one = letters->send(receiver, first);
          const auto other = letters->send(receiver, second);
          sent.count_down();
          EXPECT_EQ(error_of(*one), "");
          EXPECT_EQ(error_of(*other), "");
        }
      });
    }
  }
}

// The other rank has a letter. The question about it, and the record that ends the letter, may be
// sent in one turn, and then the record comes first.
TEST(OpenReceives, ANamedReceiveComesBetweenTheQuestionAndItsAnswer) {
  for (const int receiver : {0, 1}) {
    World world(2);
    std::latch sent(1);
    world.each([&](Runtime& runtime, int me) {
      const auto letters = std::make_shared<Letters>(runtime);
      std::vector<Tensor> x = {tensor({1}), tensor({2}), tensor({3})};
      std::vector<std::shared_ptr<HandleState>> handles(3);
      if (me == receiver) {
        sent.wait();
        letters->after_next = [&](uint64_t number) {
          if (number == 1 && handles[2] == nullptr) {
            handles[2] = letters->receive_quietly(1 - me, x[2]);  // takes that number
          }
        };
        handles[0] = letters->receive(x[0]).handle;
        handles[1] = letters->receive(x[1]).handle;
      } else {
        for (size_t i = 0; i < 3; ++i) handles[i] = letters->send(receiver, x[i]);
        sent.count_down();
      }
      for (const size_t i : {0, 1, 2}) EXPECT_EQ(error_of(*handles[i]), "");
      EXPECT_THAT(x[0].data[0] + x[1].data[0] + x[2].data[0], 6);
    });
  }
}

// Receives of both kinds, by several threads. Those from any rank may all take letters of one rank,
// so each rank sends enough for the other receives too; at the end the rest is received.
TEST(OpenReceives, ManyOfBothKindsAtOnce) {
  constexpr int kEach = 60, kSent = 3 * kEach;
  World world(3);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    if (me != 1) {
      for (int i = 0; i < kSent; ++i) {
        Tensor x = tensor({1.0F + i});
        ASSERT_EQ(error_of(*letters->send(1, x)), "");
      }
      return;
    }
    std::atomic<int> sum{0};
    const auto receive = [&](int count, auto... from) {
      for (int i = 0; i < count; ++i) {
        Tensor x = tensor({0});
        if constexpr (sizeof...(from) == 0) {
          ASSERT_EQ(error_of(*letters->receive(x).handle), "");
        } else {
          ASSERT_EQ(error_of(*letters->receive(from..., x)), "");
        }
        sum += static_cast<int>(x.data[0]);
      }
    };
    std::vector<std::thread> threads;
    for (const int from : {0, 2}) {
      threads.emplace_back([&, from] { receive(kEach, from); });
      threads.emplace_back([&] { receive(kEach); });
    }
    for (std::thread& thread : threads) thread.join();
    receive(2 * kSent - 4 * kEach);
    EXPECT_EQ(sum, kSent * (kSent + 1));
  });
}

TEST(OpenReceives, ARankThatHasShutDownIsNotWaitedForAndTheOthersAre) {
  for (const int receiver : {0, 2}) {
    World world(3);
    std::latch left(1);
    world.each([&](Runtime& runtime, int me) {
      const auto letters = std::make_shared<Letters>(runtime);
      Tensor x = tensor({5});
      if (me == 1) {
        left.count_down();
        EXPECT_EQ(runtime.shutdown(kLongEnough), "");
      } else if (me == receiver) {
        Tensor got = tensor({0}), none = tensor({0});
        const auto one = letters->receive(got);
        const auto other = letters->receive(none);
        EXPECT_EQ(error_of(*one.handle), "");
        EXPECT_THAT(got.data, ElementsAre(5));
        EXPECT_THAT(error_of(*other.handle),
                    AllOf(HasSubstr(concat("rank ", receiver, " waits for a letter")),
                          HasSubstr("all of these ranks have shut down")));
        EXPECT_EQ(runtime.shutdown(kLongEnough), "");
      } else {
        left.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        EXPECT_EQ(error_of(*letters->send(receiver, x)), "");
        EXPECT_EQ(runtime.shutdown(kLongEnough), "");
      }
    });
  }
}

TEST(OpenReceives, ShutdownEndsThem) {
  World world(2);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({5});
    Letters::FromAny open;
    if (me == 0) open = letters->receive(x);
    EXPECT_EQ(runtime.shutdown(kLongEnough), "");
    if (me == 1) return;
    EXPECT_THAT(error_of(*open.handle), HasSubstr("horon::shutdown() has been called"));
    EXPECT_THROW((void)letters->receive(x), Error);
  });
}

TEST(OpenReceives, ASendThatIsRefusedIsTheReceiversErrorToo) {
  World world(2);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({me == 1 ? 7.0F : 0.0F});
    if (me == 1) {
      letters->send_nonsense(0);
      EXPECT_EQ(error_of(*letters->send(0, x)), "");
      return;
    }
    EXPECT_THAT(error_of(*letters->receive(x).handle), HasSubstr("refused on rank 1: no good"));
    EXPECT_EQ(error_of(*letters->receive(x).handle), "");
    EXPECT_THAT(x.data, ElementsAre(7));
  });
}

// The rank that sends later keeps the question; its letter answers a later receive.
TEST(OpenReceives, WhoWasAskedInVainSendsLater) {
  World world(3);
  std::latch first(1);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({10.0F * me});
    if (me == 0) {
      const auto one = letters->receive(x);
      EXPECT_EQ(error_of(*one.handle), "");
      EXPECT_EQ(*one.source, 2);
      first.count_down();
      const auto other = letters->receive(x);
      EXPECT_EQ(error_of(*other.handle), "");
      EXPECT_EQ(*other.source, 1);
      EXPECT_THAT(x.data, ElementsAre(10));
    } else {
      if (me == 1) first.wait();
      EXPECT_EQ(error_of(*letters->send(0, x)), "");
    }
  });
}

// Names are used again. The answer about the first letter comes too late, since the receives that
// name rank 1 take it and four more.
TEST(OpenReceives, AnAnswerCountsForNoLaterLetterOfTheSameName) {
  World world(3);
  std::latch first(1), second(1), over(1);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({10.0F * me});
    if (me == 0) {
      const auto one = letters->receive(x);
      EXPECT_EQ(error_of(*one.handle), "");
      EXPECT_EQ(*one.source, 2);
      first.count_down();
      for (int i = 0; i < 5; ++i) EXPECT_EQ(error_of(*letters->receive(1, x)), "");
      const auto other = letters->receive(x);
      second.count_down();
      EXPECT_EQ(error_of(*other.handle), "");
      EXPECT_EQ(*other.source, 2);
      over.count_down();
    } else if (me == 1) {
      first.wait();
      for (int i = 0; i < 5; ++i) EXPECT_EQ(error_of(*letters->send(0, x)), "");
      over.wait();
    } else {
      EXPECT_EQ(error_of(*letters->send(0, x)), "");
      second.wait();
      EXPECT_EQ(error_of(*letters->send(0, x)), "");
    }
  });
}

TEST(OpenReceives, WhatHasNoRoomIsTriedAgain) {
  World world(2);
  std::latch sent(1);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({me == 1 ? 7.0F : 0.0F});
    if (me == 1) {
      const auto handle = letters->send(0, x);
      sent.count_down();
      EXPECT_EQ(error_of(*handle), "");
      return;
    }
    int refusals = 0;
    letters->after_next = [&](uint64_t) {
      if (refusals++ < 3) throw Error(ErrorCode::Limit, "no room");
    };
    sent.wait();
    EXPECT_EQ(error_of(*letters->receive(x).handle), "");
    EXPECT_THAT(x.data, ElementsAre(7));
  });
}

TEST(OpenReceives, AStallIsToldAndEndsTheJob) {
  Config config = no_limits();
  config.stall_warn_s = 0.05;
  config.stall_abort_s = 1.5;
  World world(2, {}, config);
  world.each([&](Runtime& runtime, int me) {
    if (me == 1) return;
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({0});
    const auto open = letters->receive(x);
    wait_for_report(runtime, "rank 0 waits for a letter from any rank");
    EXPECT_THAT(runtime.stall_report(), HasSubstr("and none has come in "));
    EXPECT_THAT(error_of(*open.handle), AllOf(HasSubstr("rank 0 waits for a letter from any rank"),
                                              HasSubstr("HORON_STALL_ABORT_S")));
  });
}

TEST(OpenReceives, TheReportOfAStallGoesWithIt) {
  Config config = no_limits();
  config.stall_warn_s = 0.05;
  World world(2, {}, config);
  std::latch told(1);
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({3});
    if (me == 1) {
      told.wait();
      EXPECT_EQ(error_of(*letters->send(0, x)), "");
      return;
    }
    const auto open = letters->receive(x);
    wait_for_report(runtime, "rank 0 waits for a letter from any rank");
    told.count_down();
    EXPECT_EQ(error_of(*open.handle), "");
    while (!runtime.stall_report().empty()) std::this_thread::yield();
  });
}

TEST(OpenReceives, ADeathEndsTheJob) {
  Dead dead;
  dead.rank = 1;
  World world(3, {}, no_limits(), hooks_of(dead));
  world.each([&](Runtime& runtime, int me) {
    if (me != 2) return;
    const auto letters = std::make_shared<Letters>(runtime);
    Tensor x = tensor({0});
    const auto open = letters->receive(x);
    dead.known = true;
    EXPECT_THAT(error_of(*open.handle), HasSubstr("rank 1 (pid 4711) has died"));
  });
}

// A letter about which no receive has asked costs no more than ever; one that was asked for costs a
// question and an answer more.
TEST(OpenReceives, OnlyWhoAsksPays) {
  World world(2);
  std::latch counted(2), open(1);
  uint64_t of_receiver = 0, of_sender = 0;
  world.each([&](Runtime& runtime, int me) {
    const auto letters = std::make_shared<Letters>(runtime);
    const auto count = [&](const auto& call) {
      const uint64_t before = runtime.statistics().control_messages_sent;
      call();
      return runtime.statistics().control_messages_sent - before;
    };
    Tensor x = tensor({1});
    if (me == 0) {
      EXPECT_EQ(error_of(*letters->receive(1, x)), "");  // greets
      counted.arrive_and_wait();
      of_receiver = count([&] { EXPECT_EQ(error_of(*letters->receive(1, x)), ""); });
      open.count_down();
      EXPECT_EQ(error_of(*letters->receive(x).handle), "");
    } else {
      EXPECT_EQ(error_of(*letters->send(0, x)), "");
      counted.arrive_and_wait();
      of_sender = count([&] { EXPECT_EQ(error_of(*letters->send(0, x)), ""); });
      open.wait();
      const uint64_t more = count([&] { EXPECT_EQ(error_of(*letters->send(0, x)), ""); });
      EXPECT_THAT(more, testing::Le(2U));
    }
  });
  EXPECT_EQ(of_receiver, 1U);
  EXPECT_EQ(of_sender, 1U);
}

}  // namespace
}  // namespace horon::core::open_receives_test

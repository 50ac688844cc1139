// What every transport promises, written once. An implementation joins by a type with
//   static void run(const std::function<void(Transport&)>& body);
// that calls body on every rank (threads, or processes that each run one), and
//   INSTANTIATE_TYPED_TEST_SUITE_P(Name, TransportContract, testing::Types<...>);
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/transport/transport.h"
#include "horon/tests/support/long_enough.h"

namespace horon::core {

// Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.
inline uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

// Bytes that identify message `index` from one rank to another.
inline Bytes pattern(int from, int to, uint64_t index, size_t length) {
  const uint64_t seed = mix(mix(static_cast<uint64_t>(from) << 32 | static_cast<uint64_t>(to)) +
                            mix(index) * 3 + length);
  Bytes bytes(length);
  for (size_t at = 0; at < length; at += sizeof(uint64_t)) {
    const uint64_t word = mix(seed + at);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, length - at));
  }
  return bytes;
}

// Waits as the runtime does, and fails the test if a wake-up is lost.
inline void wait_for_news(Transport& transport) {
  if (transport.must_poll())
    return transport.wait(std::chrono::microseconds(20), transport.wait_policy());
  const auto start = std::chrono::steady_clock::now();
  transport.wait(kLongEnough, transport.wait_policy());
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLongEnough) << "a wake-up was lost";
}

inline void flush(Transport& transport) {
  while (!transport.flushed()) wait_for_news(transport);
}

// One rank's side of a test. Messages that a faster rank has sent too early are kept here.
class Talk {
 public:
  explicit Talk(Transport& transport) : transport_(transport) {}

  int me() const { return transport_.rank(); }
  int size() const { return transport_.size(); }
  void send(int to, uint64_t index, size_t length) {
    transport_.send(to, pattern(me(), to, index, length));
  }

  // Sends one payload to all other ranks.
  void send_to_all(uint64_t index, size_t length) {
    const SharedBytes same = pattern(me(), kAll, index, length);
    for (int to = 0; to < size(); ++to) {
      if (to != me()) transport_.send(to, same);
    }
  }

  // Expects that the next message from this rank is this one.
  void expect(int from, uint64_t index, size_t length) { expect(from, me(), index, length); }
  void expect_to_all(uint64_t index, size_t length) {
    for (int from = 0; from < size(); ++from) {
      if (from != me()) expect(from, kAll, index, length);
    }
  }

  // Each rank sends count(from, to) messages, the i-th of length(i), to each other rank.
  void all_to_all(const std::function<uint64_t(int, int)>& count,
                  const std::function<size_t(uint64_t)>& length) {
    uint64_t rounds = 0;
    for (int to = 0; to < size(); ++to) rounds = std::max(rounds, count(me(), to));
    for (uint64_t index = 0; index < rounds; ++index) {
      for (int to = 0; to < size(); ++to) {
        if (to != me() && index < count(me(), to)) send(to, index, length(index));
      }
    }
    for (int from = 0; from < size(); ++from) {
      if (from == me()) continue;
      for (uint64_t index = 0; index < count(from, me()); ++index) {
        expect(from, index, length(index));
      }
    }
  }

  // Expects, when all ranks have come here, that nothing is in flight and that no unexpected
  // message has come.
  void finish() {
    constexpr uint64_t kLast = 999'999;
    all_to_all([](int, int) { return 1; }, [](uint64_t) { return size_t{24}; });
    flush(transport_);
    for (int to = 0; to < size(); ++to) {
      if (to != me()) send(to, kLast, 1);
    }
    for (int from = 0; from < size(); ++from) {
      if (from != me()) expect(from, kLast, 1);
    }
    flush(transport_);
    EXPECT_FALSE(transport_.receive().has_value());
    for (const auto& [from, messages] : early_) EXPECT_TRUE(messages.empty()) << from;
  }

 private:
  static constexpr int kAll = -1;

  void expect(int from, int to, uint64_t index, size_t length) {
    while (early_[from].empty()) {
      if (auto message = transport_.receive()) {
        ASSERT_NE(message->from, me());
        early_[message->from].push_back(std::move(message->bytes));
      } else {
        wait_for_news(transport_);
      }
    }
    const Bytes bytes = std::move(early_[from].front());
    early_[from].pop_front();
    const Bytes expected = pattern(from, to, index, length);
    // Compared by one call, because a sanitizer checks each byte that a loop reads.
    EXPECT_TRUE(bytes.size() == length &&
                (length == 0 || std::memcmp(bytes.data(), expected.data(), length) == 0))
        << "message " << index << " of " << length << " bytes from " << from << " to " << me()
        << ", got " << bytes.size() << " bytes";
  }

  Transport& transport_;
  std::map<int, std::deque<Bytes>> early_;
};

template <class World>
class TransportContract : public testing::Test {};
TYPED_TEST_SUITE_P(TransportContract);

TYPED_TEST_P(TransportContract, NumbersItsRanks) {
  TypeParam::run([](Transport& transport) {
    EXPECT_GE(transport.rank(), 0);
    EXPECT_LT(transport.rank(), transport.size());
    EXPECT_TRUE(transport.flushed());
    EXPECT_TRUE(transport.dead_peers().empty());
    Talk(transport).finish();
  });
}

TYPED_TEST_P(TransportContract, KeepsTheOrderOfEachPair) {
  TypeParam::run([](Transport& transport) {
    Talk talk(transport);
    talk.all_to_all([](int, int) { return 1000; }, [](uint64_t) { return size_t{16}; });
    talk.finish();
  });
}

TYPED_TEST_P(TransportContract, CarriesEveryLength) {
  static const std::vector<size_t> lengths = {0,    1,     7,     8,     9,     63,    64,     0,
                                              1016, 4095,  4096,  16375, 16376, 16377, 16384,  1,
                                              0,    16385, 32768, 65535, 0,     65537, 300001, 3};
  TypeParam::run([](Transport& transport) {
    Talk talk(transport);
    talk.all_to_all([](int, int) { return lengths.size(); },
                    [](uint64_t index) { return lengths[index]; });
    talk.finish();
  });
}

TYPED_TEST_P(TransportContract, CarriesLargeMessagesBothWaysAtOnce) {
  TypeParam::run([](Transport& transport) {
    Talk talk(transport);
    talk.all_to_all([](int from, int to) { return (from ^ 1) == to ? 2 : 0; },  // in pairs
                    [](uint64_t index) { return index == 0 ? size_t{4'000'000} : size_t{5}; });
    talk.finish();
  });
}

TYPED_TEST_P(TransportContract, CarriesOnePayloadToAll) {
  TypeParam::run([](Transport& transport) {
    Talk talk(transport);
    // The long ones wait in the sender's queues, some for one receiver and some for all.
    const std::vector<size_t> lengths = {3, 0, 100'000, 16, 300'001};
    for (size_t index = 0; index < lengths.size(); ++index) {
      talk.send_to_all(index, lengths[index]);
    }
    for (size_t index = 0; index < lengths.size(); ++index) {
      talk.expect_to_all(index, lengths[index]);
    }
    talk.finish();
  });
}

TYPED_TEST_P(TransportContract, TakesABurstFromAllToOne) {
  TypeParam::run([](Transport& transport) {
    // The receiver sleeps first, so that everything piles up.
    if (transport.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(50));
    Talk talk(transport);
    talk.all_to_all([](int, int to) { return to == 0 ? 3000 : 0; },
                    [](uint64_t index) { return index % 100; });
    talk.finish();
  });
}

TYPED_TEST_P(TransportContract, SurvivesRandomTraffic) {
  TypeParam::run([](Transport& transport) {
    Talk talk(transport);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      talk.all_to_all(
          [seed](int from, int to) {
            return mix(seed * 64 + static_cast<uint64_t>(from * 8 + to)) % 200;
          },
          [seed](uint64_t index) {
            const uint64_t random = mix(seed * 1'000'000 + index);
            return random % 16 == 0 ? random % 70'000 : random % 300;
          });
    }
    talk.finish();
  });
}

// Every round waits for all ranks, so each message is a wake-up of its own.
TYPED_TEST_P(TransportContract, AnswersRoundAfterRound) {
  TypeParam::run([](Transport& transport) {
    Talk talk(transport);
    for (int round = 0; round < 300; ++round) {
      talk.all_to_all([](int, int) { return 1; }, [](uint64_t) { return size_t{40}; });
    }
    talk.finish();
  });
}

TYPED_TEST_P(TransportContract, RingEndsASleepingWait) {
  TypeParam::run([](Transport& transport) {
    const auto start = std::chrono::steady_clock::now();
    std::jthread ringer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      transport.ring();
    });
    transport.wait(kLongEnough, transport.wait_policy());
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLongEnough);
    ringer.join();
    Talk(transport).finish();
  });
}

TYPED_TEST_P(TransportContract, RingBeforeWaitIsKept) {
  TypeParam::run([](Transport& transport) {
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < 3; ++i) {
      transport.ring();
      transport.ring();  // two rings before a wait count as one
      transport.wait(kLongEnough, transport.wait_policy());
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLongEnough);
    Talk(transport).finish();
  });
}

TYPED_TEST_P(TransportContract, WaitEndsByItself) {
  TypeParam::run([](Transport& transport) {
    for (const int64_t timeout_ns : {-1, 0, 1, 1000, 3'000'000}) {
      transport.wait(std::chrono::nanoseconds(timeout_ns), transport.wait_policy());
    }
    Talk(transport).finish();
  });
}

REGISTER_TYPED_TEST_SUITE_P(TransportContract, NumbersItsRanks, KeepsTheOrderOfEachPair,
                            CarriesEveryLength, CarriesLargeMessagesBothWaysAtOnce,
                            CarriesOnePayloadToAll, TakesABurstFromAllToOne, SurvivesRandomTraffic,
                            AnswersRoundAfterRound, RingEndsASleepingWait, RingBeforeWaitIsKept,
                            WaitEndsByItself);

}  // namespace horon::core

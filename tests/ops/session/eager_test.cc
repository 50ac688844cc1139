// Short blocking allreduces between hosts, whose elements travel with the votes (core::Eager). Each
// layout of hosts is a test of its own (tests.cmake); on one host there are none.
#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/tests/ops/session/blocking_sum.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/statistics_between_collectives.h"

namespace horon {
namespace {

using Bytes = std::vector<std::byte>;
using testing::HasSubstr;

bool on_one_host() { return ops::runtime().topology().one_host(); }

enum class Waits { AtOnce, Later };

// Reduces `data` in place. Only a call that waits at once sends its elements with its vote.
void reduce(const core::EntrySpec& spec, Bytes& data, Waits waits) {
  const auto kept = std::make_shared<Bytes>(data);
  core::Submission submission;
  submission.name = spec.parts.front().name;
  submission.spec = std::make_shared<core::EntrySpec>(spec);
  std::byte* at = kept->data();
  for (const core::TensorPart& part : spec.parts) {
    const int64_t count = core::element_count(part.shape);
    submission.memory.push_back({at, at, count});
    at += static_cast<size_t>(count) * size_of(spec.dtype);
  }
  submission.keep_alive = kept;
  core::Runtime& runtime = ops::runtime();
  const auto handle = waits == Waits::AtOnce ? runtime.run(std::move(submission))
                                             : runtime.submit(std::move(submission));
  (void)handle->get();
  data = *kept;
}

// Small integers of the type; other ones in each element and on each rank.
Bytes elements_of(const core::EntrySpec& spec) {
  Bytes data(static_cast<size_t>(core::element_count(spec)) * size_of(spec.dtype));
  // Floating types get any finite bits of magnitude around 1, so that the order of sums shows.
  for (size_t i = 0; i < data.size(); ++i) {
    const auto value = static_cast<uint8_t>(i * 37 + static_cast<size_t>(rank()) * 101);
    data[i] = static_cast<std::byte>(spec.dtype == DataType::Bool ? value % 2 : value);
  }
  if (!is_floating(spec.dtype)) return data;
  const size_t size = size_of(spec.dtype);
  for (size_t last = size - 1; last < data.size(); last += size) {
    data[last] = std::byte{0x3e};  // sign and the upper bits of the exponent
  }
  return data;
}

void expect_same_bits(const core::EntrySpec& spec) {
  core::EntrySpec often = spec;
  often.parts.front().name = "often";
  core::EntrySpec other = spec;
  other.parts.front().name = "other";
  const Bytes mine = elements_of(spec);
  Bytes expected = mine;
  reduce(other, expected, Waits::Later);
  for (int round = 0; round < 3; ++round) {
    Bytes result = mine;
    reduce(often, result, Waits::AtOnce);
    EXPECT_EQ(result, expected) << to_string(spec.dtype) << " " << to_string(spec.reduce_op);
  }
}

TEST(Eager, AllTypesAndReductionsHaveTheBitsOfTheOtherPath) {
  init_session();
  for (int dtype = 0; dtype < kDataTypeCount; ++dtype) {
    for (int op = 0; op < kReduceOpCount; ++op) {
      core::EntrySpec spec;
      spec.dtype = static_cast<DataType>(dtype);
      spec.reduce_op = static_cast<ReduceOp>(op);
      if (!why_no_reduction(spec.dtype, spec.reduce_op).empty()) continue;
      if (spec.reduce_op == ReduceOp::Adasum) continue;
      spec.parts = {{"x", {7}}, {"y", {0}}, {"z", {}}, {"w", {2, 25}}};
      expect_same_bits(spec);
      if (!is_floating(spec.dtype)) continue;
      spec.prescale = 0.3;
      spec.postscale = 1.7;
      expect_same_bits(spec);
    }
  }
  EXPECT_EQ(statistics().eager_starts > 0, !on_one_host());
  shutdown();
}

TEST(Eager, ARepeatedBlockingCallIsOneMessageToEachOtherRank) {
  constexpr uint64_t rounds = 50;
  init_session({.set = {{"HORON_DEAD_AFTER_S", "0"}, {"HORON_STALL_WARN_S", "0"}}});
  const std::vector<float> longest(1024, 1.0F);  // as many as HORON_EAGER_BYTES allows
  const auto round = [&] {
    EXPECT_EQ(test::blocking_sum("x", longest).back(), static_cast<float>(size()));
    barrier();
  };
  for (int i = 0; i < 8; ++i) round();
  const Statistics before = test::statistics_between_collectives();
  for (uint64_t i = 0; i < rounds; ++i) round();
  const Statistics after = test::statistics_between_collectives();
  if (on_one_host()) {
    EXPECT_EQ(after.eager_starts, 0U);
  } else {
    const uint64_t others = static_cast<uint64_t>(size() - 1);
    EXPECT_EQ(after.eager_starts, before.eager_starts + 2 * rounds);
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent + 2 * rounds * others);
    EXPECT_EQ(after.negotiated_starts, before.negotiated_starts);
    EXPECT_EQ(after.frozen_starts, before.frozen_starts);
  }
  shutdown();
}

TEST(Eager, LongerTensorsAndAKnobOfZeroTakeTheOtherPath) {
  for (const char* limit : {"4096", "0"}) {
    init_session({.set = {{"HORON_EAGER_BYTES", limit}}});
    const std::vector<float> values(limit[0] == '0' ? 1 : 1025, 1.0F);
    for (int i = 0; i < 20; ++i) {
      EXPECT_EQ(test::blocking_sum("x", values).back(), static_cast<float>(size()));
    }
    EXPECT_EQ(statistics().eager_starts, 0U);
    shutdown();
  }
}

TEST(Eager, SomeRanksMayWaitLater) {
  init_session();
  core::EntrySpec spec;
  spec.parts = {{"x", {3}}};
  for (int i = 0; i < 60; ++i) {
    const float value = static_cast<float>(i);
    std::vector<float> values(3, value);
    Bytes data(sizeof(float) * values.size());
    std::memcpy(data.data(), values.data(), data.size());
    reduce(spec, data, (i + rank()) % 4 == 0 ? Waits::Later : Waits::AtOnce);
    std::memcpy(values.data(), data.data(), data.size());
    EXPECT_EQ(values[2], value * static_cast<float>(size()));
  }
  shutdown();
}

TEST(Eager, AMismatchIsToldAndTheNextCallWorks) {
  init_session();
  for (int i = 0; i < 20; ++i) (void)test::blocking_sum("x", {1.0F});
  for (int times = 0; times < 3; ++times) {
    const size_t length = rank() == 0 ? 2 : 1;
    EXPECT_THAT(test::error_of([&] { (void)test::blocking_sum("x", std::vector(length, 1.0F)); }),
                HasSubstr("\"x\""));
    for (int i = 0; i < 5; ++i) {
      EXPECT_EQ(test::blocking_sum("x", {1.0F}).front(), static_cast<float>(size()));
    }
  }
  shutdown();
}

TEST(Eager, ARankThatHasJoinedIsLeftOut) {
  init_session();
  for (int i = 0; i < 20; ++i) (void)test::blocking_sum("x", {1.0F});
  if (rank() != 0) {
    for (int i = 0; i < 10; ++i) {
      EXPECT_GE(test::blocking_sum("x", {1.0F}).front(), static_cast<float>(size() - 1));
    }
  }
  (void)join();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(test::blocking_sum("x", {1.0F}).front(), static_cast<float>(size()));
  }
  shutdown();
}

}  // namespace
}  // namespace horon

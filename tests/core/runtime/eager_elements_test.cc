#include "horon/core/runtime/eager_elements.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/tests/support/fake_device.h"

namespace horon::core {
namespace {

using testing::ElementsAre;

std::byte* bytes_of(std::vector<float>& data) { return reinterpret_cast<std::byte*>(data.data()); }

// A sum of two tensors that its caller waits for.
struct AwaitedSum {
  AwaitedSum() {
    spec->parts = {{"a", {2}}, {"b", {1}}};
    submission.spec = spec;
    submission.memory = {{bytes_of(first), bytes_of(first), 2},
                         {bytes_of(second), bytes_of(second), 1}};
    submission.awaited = true;
  }
  std::vector<float> first = {1, 2}, second = {3};
  std::shared_ptr<EntrySpec> spec = std::make_shared<EntrySpec>();
  Submission submission;
};

constexpr int64_t kBytesMax = 12;

bool travels_after(const std::function<void(Submission&, EntrySpec&)>& change) {
  AwaitedSum call;
  change(call.submission, *call.spec);
  return may_travel_with_vote(call.submission, kBytesMax);
}

TEST(EagerElements, TravelIfTheyAreHereAndNobodyElseNeedsToKnowMore) {
  EXPECT_TRUE(travels_after([](Submission&, EntrySpec&) {}));
  EXPECT_TRUE(travels_after([](Submission&, EntrySpec& spec) {
    spec.kind = CollectiveKind::Barrier;
    spec.parts = {{"a", {1000}}};
  }));
  const std::vector<std::function<void(Submission&, EntrySpec&)>> changes = {
      [](Submission& call, EntrySpec&) { call.awaited = false; },
      [](Submission& call, EntrySpec&) { call.narrowed = true; },
      [](Submission& call, EntrySpec&) { call.copied_to_host = true; },
      [](Submission& call, EntrySpec&) { call.ready = std::make_unique<test::FakeEvent>(1); },
      [](Submission& call, EntrySpec&) {
        call.absent = {true, false};
      },
      [](Submission&, EntrySpec& spec) { spec.device = DeviceKind::Cuda; },
      [](Submission&, EntrySpec& spec) { spec.kind = CollectiveKind::Broadcast; },
      [](Submission&, EntrySpec& spec) { spec.reduce_op = ReduceOp::Adasum; },
      [](Submission&, EntrySpec& spec) { spec.compression = Compression::BFloat16; },
      [](Submission&, EntrySpec& spec) {
        spec.parts.push_back({"c", {1}});
      },
  };
  for (size_t i = 0; i < changes.size(); ++i) EXPECT_FALSE(travels_after(changes[i])) << i;
}

// As SetResources::reduce, for a sum.
void add_up(const Batch& batch, std::span<const std::byte* const> inputs) {
  auto* const sums = reinterpret_cast<float*>(batch.output);
  for (int64_t i = 0; i < batch.count; ++i) {
    sums[i] = 0;
    for (const std::byte* input : inputs) sums[i] += reinterpret_cast<const float*>(input)[i];
  }
}

TEST(EagerElements, AreThoseOfAllTensorsAndSoIsTheResult) {
  AwaitedSum mine, others;
  others.first = {10, 20};
  others.second = {30};
  std::vector<float> result(1);
  mine.submission.memory[1].output = bytes_of(result);
  const std::vector<int> ranks = {0, 1};
  const std::vector<std::vector<std::byte>> elements = {elements_of(mine.submission),
                                                        elements_of(others.submission)};
  reduce_elements(mine.submission, ranks, elements, add_up);
  EXPECT_THAT(mine.first, ElementsAre(11, 22));
  EXPECT_THAT(mine.second, ElementsAre(3));
  EXPECT_THAT(result, ElementsAre(33));
  others.submission.memory[0].wants_output = false;
  others.submission.memory[0].output = nullptr;
  reduce_elements(others.submission, ranks, elements, add_up);
  EXPECT_THAT(others.first, ElementsAre(10, 20));
  EXPECT_THAT(others.second, ElementsAre(33));
}

TEST(EagerElements, OfAnotherLengthAreAnError) {
  AwaitedSum call;
  std::vector<std::vector<std::byte>> elements(2, elements_of(call.submission));
  elements[1].pop_back();
  EXPECT_THROW(reduce_elements(call.submission, std::vector<int>{0, 1}, elements, add_up), Error);
  EXPECT_THAT(call.first, ElementsAre(1, 2));
}

}  // namespace
}  // namespace horon::core

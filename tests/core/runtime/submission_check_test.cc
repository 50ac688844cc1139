#include "horon/core/runtime/submission_check.h"

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/runtime/pair_sets.h"

namespace horon::core {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 4;

// What is wrong with an alltoall of kRows rows that rank 0 of three divides by `splits`.
std::string fault_of(std::vector<int64_t> splits) {
  EntrySpec spec;
  spec.kind = CollectiveKind::Alltoall;
  spec.parts = {{"x", {kRows}}};
  std::vector<float> rows(static_cast<size_t>(kRows));
  Submission submission;
  submission.name = "x";
  submission.spec = std::make_shared<const EntrySpec>(spec);
  submission.memory = {{reinterpret_cast<std::byte*>(rows.data()), nullptr, kRows}};
  submission.allocate_output = [](size_t, int64_t, MemoryQueue&) { return nullptr; };
  submission.splits = std::move(splits);
  constexpr std::array ranks = {0, 1, 2};
  return find_fault(submission, 0, ranks, host_alone(), RunnableCalls{{}});
}

// What is wrong with a call of this spec, whose tensors have no elements, among two ranks.
std::string fault_of(EntrySpec spec) {
  Submission submission;
  submission.name = "x";
  submission.spec = std::make_shared<const EntrySpec>(std::move(spec));
  submission.memory = {{nullptr, nullptr, 0}};
  constexpr std::array ranks = {0, 1};
  return find_fault(submission, 0, ranks, host_alone(), RunnableCalls{{}});
}

TEST(SubmissionCheck, SplitsDivideTheRows) {
  EXPECT_EQ(fault_of({1, 0, 3}), "");
  EXPECT_THAT(fault_of({1, 1, 1}), HasSubstr("add up to 3, but the first dimension is 4"));
  EXPECT_THAT(fault_of({1, 3}), HasSubstr("2 splits for 3 ranks"));
  EXPECT_THAT(fault_of({5, -1, 0}), HasSubstr("a split is negative in [5, -1, 0]"));
}

TEST(SubmissionCheck, TensorsAreDividedAsOne) {
  const auto fault = [](CollectiveKind kind, std::vector<int64_t> splits, size_t memories = 1) {
    EntrySpec spec;
    spec.kind = kind;
    spec.as_one = true;
    spec.parts = {{"a", {2, 2}}, {"b", {}}};
    spec.splits = std::move(splits);
    Submission submission;
    submission.name = "x";
    submission.spec = std::make_shared<const EntrySpec>(spec);
    submission.memory.assign(memories, {nullptr, nullptr, 5 / static_cast<int64_t>(memories)});
    submission.allocate_output = [](size_t, int64_t, MemoryQueue&) { return nullptr; };
    constexpr std::array ranks = {0, 1, 2};
    return find_fault(submission, 0, ranks, host_alone(), RunnableCalls{{}});
  };
  EXPECT_EQ(fault(CollectiveKind::Reducescatter, {0, 4, 1}), "");
  EXPECT_THAT(fault(CollectiveKind::Reducescatter, {0, 4}), HasSubstr("2 splits for 3 ranks"));
  EXPECT_THAT(fault(CollectiveKind::Reducescatter, {}), HasSubstr("0 splits for 3 ranks"));
  EXPECT_THAT(fault(CollectiveKind::Reducescatter, {1, 4, 1}), HasSubstr("add up to 6"));
  EXPECT_THAT(fault(CollectiveKind::Reducescatter, {0, 4, 1}, 5), HasSubstr("one piece of memory"));
  EXPECT_THAT(fault(CollectiveKind::Allreduce, {0, 4, 1}), HasSubstr("this is allreduce"));
}

TEST(SubmissionCheck, BlocksOfAResultAreOnePerRank) {
  const auto fault = [](CollectiveKind kind, size_t blocks, size_t parts = 1) {
    EntrySpec spec;
    spec.kind = kind;
    spec.root = 1;
    spec.parts.assign(parts, {"x", {1}});
    Submission submission;
    submission.name = "x";
    submission.spec = std::make_shared<const EntrySpec>(std::move(spec));
    submission.memory.assign(parts, {nullptr, nullptr, 1});
    submission.allocate_output = [](size_t, int64_t, MemoryQueue&) { return nullptr; };
    submission.output_blocks.resize(blocks);
    constexpr std::array ranks = {0, 1};
    return find_fault(submission, 0, ranks, host_alone(), RunnableCalls{{}});
  };
  EXPECT_EQ(fault(CollectiveKind::Allgather, 2), "");
  EXPECT_THAT(fault(CollectiveKind::Allgather, 3), HasSubstr("3 output blocks for 2 ranks"));
  EXPECT_THAT(fault(CollectiveKind::Allgather, 2, 2), HasSubstr("can't go into blocks"));
  EXPECT_THAT(fault(CollectiveKind::Gather, 2), HasSubstr("can't go into blocks")) << "no root";
}

TEST(SubmissionCheck, SplitsWhoseSumWrapsAroundToTheRowsAreRefused) {
  constexpr int64_t most = INT64_MAX;
  EXPECT_THAT(fault_of({most, most, kRows + 2}), HasSubstr(std::to_string(most)));
  EXPECT_THAT(fault_of({most, 1, kRows}), HasSubstr(std::to_string(most)));
}

TEST(SubmissionCheck, OnDevicesTheRuntimeNarrows) {
  const auto fault = [](DeviceKind device, Compression compression) {
    auto spec = std::make_shared<EntrySpec>();
    spec->device = device;
    spec->compression = compression;
    spec->parts = {{"x", {0}}};
    Submission submission;
    submission.name = "x";
    submission.spec = std::move(spec);
    submission.memory = {{nullptr, nullptr, 0}};
    submission.narrowed = true;
    constexpr std::array ranks = {0, 1};
    return find_fault(submission, 0, ranks, host_alone(), RunnableCalls{{}});
  };
  EXPECT_EQ(fault(DeviceKind::Host, Compression::BFloat16), "");
  EXPECT_THAT(fault(DeviceKind::Host, Compression::None), HasSubstr("no compression to 16 bits"));
  EXPECT_THAT(fault(DeviceKind::Cuda, Compression::BFloat16),
              HasSubstr("which on devices the runtime does"));
}

// In a set in which some ranks have a GPU; this rank's is number 3.
TEST(SubmissionCheck, CopiesToTheHostAreForMixedSets) {
  const auto fault = [](bool mixed, bool copied, EntrySpec spec, bool narrowed = false) {
    RankDevices devices = host_alone();
    RankDevice& gpu = devices[static_cast<size_t>(DeviceKind::Cuda)];
    gpu.index = 3;
    gpu.mixed = mixed;
    Submission submission;
    submission.name = "x";
    submission.spec = std::make_shared<const EntrySpec>(std::move(spec));
    submission.memory = {{nullptr, nullptr, 0}};
    submission.copied_to_host = copied;
    submission.narrowed = narrowed;
    submission.device_index = copied || submission.spec->device == DeviceKind::Cuda ? 3 : 0;
    constexpr std::array ranks = {0, 1};
    return find_fault(submission, 0, ranks, devices, RunnableCalls{{}});
  };
  EntrySpec host;
  host.parts = {{"x", {0}}};
  EntrySpec cuda = host;
  cuda.device = DeviceKind::Cuda;
  EXPECT_EQ(fault(/*mixed=*/true, /*copied=*/true, host), "");
  EXPECT_EQ(fault(/*mixed=*/true, /*copied=*/false, host), "");
  EXPECT_EQ(fault(/*mixed=*/false, /*copied=*/false, cuda), "");
  EXPECT_THAT(fault(/*mixed=*/false, /*copied=*/true, host), HasSubstr("with and without a GPU"));
  EXPECT_THAT(fault(/*mixed=*/true, /*copied=*/false, cuda), HasSubstr("must say Host"));
  EXPECT_THAT(fault(/*mixed=*/true, /*copied=*/true, cuda), HasSubstr("does not say so"));
  EntrySpec narrow = host;
  narrow.compression = Compression::BFloat16;
  EXPECT_THAT(fault(/*mixed=*/true, /*copied=*/true, narrow, /*narrowed=*/true),
              HasSubstr("which on devices the runtime does"));
  host.captured = true;
  EXPECT_THAT(fault(/*mixed=*/true, /*copied=*/true, host), HasSubstr("have no GPU"));
  EXPECT_THAT(fault(/*mixed=*/true, /*copied=*/false, host), HasSubstr("can't be captured"));
}

// The ops of a pair set are not known before the loop makes the set, and then it is too late to
// refuse a call.
TEST(SubmissionCheck, AGraphHoldsNoMessages) {
  const auto fault = [](bool captured) {
    EntrySpec spec;
    spec.kind = CollectiveKind::Broadcast;
    spec.device = DeviceKind::Cuda;
    spec.captured = captured;
    spec.parts = {{"x", {0}}};
    RankDevices devices = host_alone();
    devices[static_cast<size_t>(DeviceKind::Cuda)].index = 0;
    Submission submission;
    submission.set = pair_set(0, 1, 2);
    submission.name = "x";
    submission.spec = std::make_shared<const EntrySpec>(std::move(spec));
    submission.memory = {{nullptr, nullptr, 0}};
    constexpr std::array ranks = {0, 1};
    return find_fault(submission, 0, ranks, devices, RunnableCalls{{}});
  };
  EXPECT_EQ(fault(/*captured=*/false), "");
  EXPECT_THAT(fault(/*captured=*/true), HasSubstr("a CUDA graph can't hold messages"));
}

TEST(SubmissionCheck, PiecesAreForAllreduceAndNotBelowZero) {
  const auto fault = [](CollectiveKind kind, int64_t piece_bytes) {
    EntrySpec spec;
    spec.kind = kind;
    spec.piece_bytes = piece_bytes;
    spec.parts = {{"x", {0}}};
    return fault_of(spec);
  };
  EXPECT_EQ(fault(CollectiveKind::Allreduce, 1), "");
  EXPECT_THAT(fault(CollectiveKind::Allreduce, -1), HasSubstr("piece_bytes is -1, below 0"));
  EXPECT_THAT(fault(CollectiveKind::Broadcast, 64), HasSubstr("not for broadcast"));
}

// No rank could compute how many bytes to expect from it, even though one extent is 0.
TEST(SubmissionCheck, AShapeWithTooManyBytesIsRefused) {
  constexpr int64_t many = int64_t{1} << 31;
  EntrySpec spec;
  spec.parts = {{"x", {0, many, many}}};
  EXPECT_THAT(fault_of(spec), HasSubstr("more bytes than 64 bits can count"));
}

}  // namespace
}  // namespace horon::core

#include "horon/core/negotiation/agreement.h"

#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/support/spec_changes.h"

namespace horon::core {
namespace {

using test::spec_changes;
using test::SpecChange;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

EntrySpec base() { return test::spec_to_change(); }

// The error if ranks 0, 1, ... say these specs.
std::string told(const std::vector<EntrySpec>& said, const std::string& name = "grad") {
  std::vector<std::pair<int, SpecPtr>> specs;
  for (size_t rank = 0; rank < said.size(); ++rank) {
    specs.emplace_back(static_cast<int>(rank), std::make_shared<const EntrySpec>(said[rank]));
  }
  return disagreement(name, specs);
}

TEST(Agreement, EqualSpecsAgree) {
  EXPECT_TRUE(agree(base(), base()));
  EXPECT_TRUE(agree(EntrySpec{}, EntrySpec{}));
}

TEST(SpecChanges, EveryFieldIsChanged) {
  std::set<size_t> changed;
  for (const SpecChange& change : spec_changes()) {
    EntrySpec other = base();
    change.apply(other);
    const std::vector<size_t> fields = test::differing_fields(base(), other);
    EXPECT_THAT(fields, SizeIs(1)) << change.field;
    changed.insert(fields.begin(), fields.end());
  }
  EXPECT_THAT(changed, SizeIs(test::kSpecFieldCount)) << "a field has no change in the list";
}

TEST(Agreement, EveryFieldCounts) {
  for (const SpecChange& change : spec_changes()) {
    EntrySpec other = base();
    change.apply(other);
    EXPECT_FALSE(agree(base(), other)) << change.field;
    EXPECT_FALSE(agree(other, base())) << change.field;
    EXPECT_TRUE(agree(other, other)) << change.field;
  }
}

TEST(Agreement, TextNamesTensorFieldRanksAndBothValues) {
  for (const SpecChange& change : spec_changes()) {
    EntrySpec other = base();
    change.apply(other);
    const std::string text = told({base(), other, base()});
    EXPECT_THAT(text, HasSubstr("\"grad\""));
    EXPECT_THAT(text, HasSubstr("disagree about the " + change.field + ":"));
    EXPECT_THAT(text, HasSubstr(change.before + " on ranks 0 and 2"));
    EXPECT_THAT(text, HasSubstr(change.after + " on rank 1"));
  }
}

// A remark in parentheses after the entry's name describes the call.
TEST(Agreement, RemarksBehindANameAreNotTheName) {
  for (const std::string name : {"auc", "auc.3"}) {  // alone, and in a group
    EntrySpec a = base(), b = base(), c = base();
    a.parts[0].name = name + " (mean of 3 classes)";
    b.parts[0].name = name + " (mean of 4 classes)";
    c.parts[0].name = name;
    EXPECT_THAT(
        told({a, b, c}, "auc"),
        AllOf(HasSubstr("tensor \"" + name + "\""),
              HasSubstr("disagree about the call: (mean of 3 classes) on rank 0, (mean of 4 "
                        "classes) on rank 1, a plain allreduce on rank 2")));
  }
}

// Unlike calls may be of the same kind, such as an allreduce and a barrier that is an allreduce of
// one element.
TEST(Agreement, UnlikeCallsAreToldBeforeTheirDtypes) {
  EntrySpec a = base(), b = base();
  a.parts = {{"c10d.0 (barrier)", {1}}};
  b.parts = {{"c10d.0", {4}}};
  a.dtype = DataType::UInt8;
  EXPECT_THAT(told({a, b}, "c10d.0"),
              HasSubstr("the call: (barrier) on rank 0, a plain allreduce on rank 1"));
  b.kind = CollectiveKind::Allgather;
  EXPECT_THAT(told({a, b}, "c10d.0"), HasSubstr("about the collective"));
}

TEST(Agreement, StridesAreNotTheName) {
  EntrySpec a = base(), b = base();
  a.parts[0].name = "w (old) (strides [8, 1, 4, 2])";
  b.parts[0].name = "w (old)";
  EXPECT_THAT(
      told({a, b}, "bucket 2"),
      AllOf(HasSubstr("tensor \"w (old)\" (in \"bucket 2\")"),
            HasSubstr("the call: (strides [8, 1, 4, 2]) on rank 0, a plain allreduce on rank 1")));
  b.parts[0].shape.push_back(7);
  b.parts[0].name = a.parts[0].name;
  EXPECT_THAT(told({a, b}, "bucket 2"), AllOf(HasSubstr("tensor \"w (old)\""), HasSubstr("shape")));
}

TEST(Agreement, ParenthesesOfTheProgramAreTheName) {
  EntrySpec a = base(), b = base();
  a.parts[0].name = b.parts[0].name = "loss (train)";
  b.parts[0].shape.push_back(7);
  for (const std::string entry : {"loss (train)", "bucket 2"}) {
    EXPECT_THAT(told({a, b}, entry),
                AllOf(HasSubstr("tensor \"loss (train)\""), HasSubstr("about the shape")));
  }
  b.parts[0].name = "loss (test)";
  EXPECT_THAT(told({a, b}, "bucket 2"),
              HasSubstr("tensor name: loss (train) on rank 0, loss (test) on rank 1"));
}

TEST(Agreement, ShapesOfFewerDimensionsOrInAnotherOrderDiffer) {
  const std::vector<std::pair<std::vector<int64_t>, std::string>> shapes = {
      {{3, 2}, "[3, 2]"}, {{}, "[]"}, {{6}, "[6]"}};
  for (const auto& [shape, text] : shapes) {
    EntrySpec other = base();
    other.parts[0].shape = shape;
    EXPECT_FALSE(agree(base(), other)) << text;
    EXPECT_THAT(told({base(), other}), HasSubstr("[2, 3] on rank 0, " + text + " on rank 1"));
  }
}

// Splits that no program has given follow from the shape, as in a reduction to one rank.
TEST(Agreement, TheShapeIsNamedBeforeTheSplits) {
  EntrySpec a = base();
  a.kind = CollectiveKind::Reducescatter;
  a.parts = {{"grad", {3}}};
  a.splits = {3, 0};
  EntrySpec b = a;
  b.parts[0].shape = {4};
  b.splits = {4, 0};
  EXPECT_THAT(told({a, b}), HasSubstr("disagree about the shape: [3] on rank 0, [4] on rank 1"));
}

TEST(Agreement, OneWholeSentence) {
  EntrySpec other = base();
  other.dtype = DataType::Float64;
  EXPECT_EQ(told({base(), other}),
            "tensor \"grad\": the ranks disagree about the dtype: float32 on rank 0, float64 on "
            "rank 1. Every rank must give the same dtype.");
}

TEST(Agreement, ABarrierHasNoTensors) {
  EntrySpec a;
  a.kind = CollectiveKind::Barrier;
  a.parts = {{"set 2 of ranks 0 and 1", {0}}};
  EntrySpec b = a;
  b.parts[0].name = "set 2 of ranks 0 and 2";
  EXPECT_EQ(told({a, b}, "add"),
            "the ranks disagree in \"add\": set 2 of ranks 0 and 1 on rank 0, set 2 of ranks 0 and "
            "2 on rank 1.");
}

TEST(Agreement, ThreeValuesAndManyValues) {
  std::vector<EntrySpec> said;
  for (int64_t rank = 0; rank < 3; ++rank) {
    said.push_back(base());
    said.back().parts[0].shape = {rank};
  }
  EXPECT_THAT(told(said), HasSubstr("[0] on rank 0, [1] on rank 1, [2] on rank 2."));
  for (int64_t rank = 3; rank < 9; ++rank) {
    said.push_back(base());
    said.back().parts[0].shape = {rank};
  }
  const std::string text = told(said);
  EXPECT_THAT(text, HasSubstr("[3] on rank 3, and 5 more values."));
  EXPECT_THAT(text, Not(HasSubstr("[4]")));
}

TEST(Agreement, ThousandsOfRanksStayReadable) {
  std::vector<EntrySpec> said(5000, base());
  said[7].dtype = DataType::Int8;
  const std::string text = told(said);
  EXPECT_THAT(text, HasSubstr("int8 on rank 7"));
  EXPECT_THAT(text, HasSubstr("(4999 in all)"));
  EXPECT_LT(text.size(), 400U);
}

TEST(Agreement, PartOfABucketIsNamed) {
  EntrySpec bucket = base();
  bucket.parts = {{"conv.weight", {8}}, {"conv.bias", {2}}};
  EntrySpec other = bucket;
  other.parts[1].shape = {3};
  const std::string text = told({bucket, other}, "bucket 0");
  EXPECT_THAT(text, HasSubstr("tensor \"conv.bias\" (in \"bucket 0\")"));
  EXPECT_THAT(text, HasSubstr("[2] on rank 0, [3] on rank 1"));
}

TEST(Agreement, AllgatherLeavesOutTheFirstDimension) {
  EntrySpec a = base();
  a.kind = CollectiveKind::Allgather;
  EntrySpec b = a;
  b.parts[0].shape = {17, 3};
  EXPECT_TRUE(agree(a, b));
  b.parts[0].shape = {17, 4};
  EXPECT_FALSE(agree(a, b));
  EXPECT_THAT(told({a, b}), HasSubstr("[*, 3] on rank 0, [*, 4] on rank 1"));
  b.parts[0].shape = {17};
  EXPECT_FALSE(agree(a, b));
  EXPECT_THAT(told({a, b}), HasSubstr("[*, 3] on rank 0, [*] on rank 1"));
  a.parts[0].shape = {};
  EXPECT_FALSE(agree(a, b));
  EXPECT_THAT(told({a, b}), HasSubstr("[] on rank 0, [*] on rank 1"));
}

// Two values that look alike in six digits are still two values.
TEST(Agreement, ScalesAreToldInFull) {
  EntrySpec other = base();
  other.prescale = 1.0 / 3;
  EntrySpec third = base();
  third.prescale = 0.333333333333;
  EXPECT_FALSE(agree(other, third));
  EXPECT_THAT(told({other, third}),
              HasSubstr("0.3333333333333333 on rank 0, 0.333333333333 on rank 1"));
}

TEST(Agreement, NotANumberAgreesWithItself) {
  EntrySpec nan = base();
  nan.postscale = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(agree(nan, nan));
  EXPECT_FALSE(agree(nan, base()));
  EXPECT_THAT(told({nan, base()}), HasSubstr("postscale: nan on rank 0, 1 on rank 1"));
}

TEST(Agreement, TheSignOfZeroIsAValue) {
  EntrySpec plus = base();
  plus.prescale = 0.0;
  EntrySpec minus = base();
  minus.prescale = -0.0;
  EXPECT_FALSE(agree(plus, minus));
  EXPECT_THAT(told({plus, minus}), HasSubstr("prescale: 0 on rank 0, -0 on rank 1"));
}

}  // namespace
}  // namespace horon::core

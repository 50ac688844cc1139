// Messages that no controller sends: each ends the job, and none is obeyed.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/core/negotiation/test_messages.h"

namespace horon::core::impossible_messages_test {
namespace {

using ::testing::HasSubstr;

using test_messages::message;
using test_messages::tensor;

using Owned = std::unique_ptr<Controller>;

Owned make(int rank = 1, int size = 3) {
  Controller::Options options;
  options.rank = rank;
  options.size = size;
  return std::make_unique<Controller>(options);
}

// The error with which this item from that rank ends the controller; empty if it does not.
std::string end_after(Owned controller, int from, const Item& item) {
  controller->receive(from, message(item));
  const Effects effects = controller->take_effects();
  return effects.fatal ? effects.fatal->what() : "";
}

Owned with_x(const SpecPtr& x = tensor("x")) {
  Owned controller = make();
  controller->submit({1, "x", x, {}, {}});
  controller->take_effects();
  return controller;
}

// The same for these records.
std::string end_after(const Owned& controller, const std::vector<Item>& records) {
  Envelope envelope;
  envelope.items = records;
  controller->receive(0, encode(envelope));
  const Effects effects = controller->take_effects();
  return effects.fatal ? effects.fatal->what() : "";
}

PlannedEntry planned(const std::string& name, const SpecPtr& spec) {
  PlannedEntry entry;
  entry.name = name;
  entry.spec = spec;
  return entry;
}
PlannedEntry planned(const std::string& name) { return planned(name, tensor(name)); }

Plan plan_of(PlannedEntry entry, std::vector<int> joined = {}) {
  Plan plan;
  plan.batches.push_back({{std::move(entry)}, std::move(joined)});
  return plan;
}

TEST(ImpossibleMessages, OnlyTheCoordinatorSendsRecords) {
  EXPECT_THAT(end_after(make(1, 3), 2, Bye{}), HasSubstr("a rank that does not decide"));
  EXPECT_THAT(end_after(make(0, 3), 2, Unused{"x"}), HasSubstr("a rank that does not decide"));
}

TEST(ImpossibleMessages, NothingIsFrozenWhereThereIsNoGate) {
  EXPECT_THAT(end_after(make(1, 2), 0, Freeze{{1}, {1}}), HasSubstr("where there is no gate"));
}

TEST(ImpossibleMessages, OnlyTheCoordinatorTakesSubmissions) {
  const std::string text = end_after(make(1, 3), 2, Join{});
  EXPECT_THAT(text, HasSubstr("message from rank 2"));
  EXPECT_THAT(text, HasSubstr("a submission reached a rank that does not decide"));
}

TEST(ImpossibleMessages, AnotherSetIsRefused) {
  Owned controller = make(1, 2);
  Envelope envelope;
  envelope.set = 3;
  controller->receive(0, encode(envelope));
  const Effects effects = controller->take_effects();
  ASSERT_TRUE(effects.fatal.has_value());
  EXPECT_THAT(effects.fatal->what(), HasSubstr("a process set that is not here"));
}

TEST(ImpossibleMessages, MembersThatBreakTheProtocolEndTheJob) {
  Owned controller = make(0, 3);
  Ready ready;
  ready.name = "x";
  ready.spec = tensor("x");
  controller->receive(1, message(ready));
  EXPECT_FALSE(controller->take_effects().fatal.has_value());
  controller->receive(1, message(ready));
  const Effects effects = controller->take_effects();
  ASSERT_TRUE(effects.fatal.has_value());
  EXPECT_THAT(effects.fatal->what(), HasSubstr("it said \"x\" twice"));
  EXPECT_EQ(effects.messages.size(), 2U) << "everybody is told";
  ready.id = 7;
  ready.spec = nullptr;
  ready.name.clear();
  EXPECT_THAT(end_after(make(0, 3), 1, ready), HasSubstr("an id that was never given"));
  controller = make(0, 3);
  controller->receive(1, message(Shutdown{}));
  EXPECT_THAT(end_after(std::move(controller), 1, Drained{1}), HasSubstr("1 batches have ended"));
  controller = make(0, 3);
  controller->receive(1, message(Join{}));
  EXPECT_THAT(end_after(std::move(controller), 1, Join{}), HasSubstr("it joined twice"));
  EntrySpec gather = *tensor("g");
  gather.kind = CollectiveKind::Allgather;
  Ready rows;
  rows.name = "g";
  rows.spec = std::make_shared<const EntrySpec>(gather);
  rows.extents = {-1};
  EXPECT_THAT(end_after(make(0, 3), 1, rows), HasSubstr("the extents of \"g\" can't be"));
}

TEST(ImpossibleMessages, PlansThatCantBeAreNotStarted) {
  EXPECT_EQ(end_after(with_x(), {plan_of(planned("x"))}), "");
  EXPECT_THAT(end_after(with_x(), {plan_of(planned("y"))}), HasSubstr("not unserved here"));
  EXPECT_THAT(end_after(with_x(), {plan_of(planned("x"), {0, 0})}), HasSubstr("can't be"));
  EXPECT_THAT(end_after(with_x(), {plan_of(planned("x"), {3})}), HasSubstr("can't be"));
  EXPECT_THAT(end_after(with_x(), {plan_of(planned("x"), {-1})}), HasSubstr("can't be"));
  EXPECT_THAT(end_after(with_x(), {plan_of(planned("y"), {0, 1, 2})}), HasSubstr("can't be"));
  EXPECT_THAT(end_after(with_x(), {plan_of(planned("x", tensor("x", 5)))}),
              HasSubstr("another spec"));
  PlannedEntry flags = planned("x");
  flags.produced = {true, false};
  EXPECT_THAT(end_after(with_x(), {plan_of(flags)}), HasSubstr("do not fit its tensors"));
  PlannedEntry id;
  id.id = 9;
  EXPECT_THAT(end_after(with_x(), {plan_of(id)}), HasSubstr("an id that was never agreed"));
  Plan empty;
  empty.batches.resize(1);
  EXPECT_THAT(end_after(with_x(), {empty}), HasSubstr("an empty batch"));
}

// Everybody's blocks are laid out by these numbers, so a wrong one would be memory of others.
TEST(ImpossibleMessages, RowsThatCantBeAreNotLaidOut) {
  const auto gathered = [](std::vector<TensorPart> parts, std::vector<int64_t> extents) {
    EntrySpec spec;
    spec.kind = CollectiveKind::Allgather;
    spec.parts = std::move(parts);
    const auto x = std::make_shared<const EntrySpec>(spec);
    PlannedEntry entry = planned("x", x);
    entry.extents = std::move(extents);
    return end_after(with_x(x), {plan_of(entry)});
  };
  EXPECT_EQ(gathered({{"x", {2}}}, {1, 2, 3}), "");
  EXPECT_THAT(gathered({{"x", {2}}}, {1, 2}), HasSubstr("extents"));
  EXPECT_THAT(gathered({{"x", {2}}}, {-1, 2, 3}), HasSubstr("extents"));
  EXPECT_THAT(gathered({{"x", {}}}, {1, 2, 3}), HasSubstr("which has no rows"));
  EXPECT_THAT(gathered({}, {}), HasSubstr("which has no rows"));
  PlannedEntry reduced = planned("x");
  reduced.extents = {1, 2, 3};
  EXPECT_THAT(end_after(with_x(), {plan_of(reduced)}), HasSubstr("extents"));
}

// A rank that believed such a Bye would leave others, or its own work, behind.
TEST(ImpossibleMessages, TheLogDoesNotEndTooEarly) {
  EXPECT_THAT(end_after(make(), {Bye{}}), HasSubstr("before this rank has left"));
  const Owned unserved = with_x();
  unserved->shutdown();
  EXPECT_THAT(end_after(unserved, {Bye{}}), HasSubstr("with entries unserved"));
  const Owned runs = with_x();
  runs->shutdown();
  EXPECT_THAT(end_after(runs, {plan_of(planned("x")), Bye{}}), HasSubstr("while a batch runs"));
  const Owned leaves = make();
  leaves->shutdown();
  EXPECT_THAT(end_after(leaves, {Bye{}, Unused{"y"}}), HasSubstr("after its end"));
}

// Members 0 and 1 of a set are ranks 4 and 7, and people know only those numbers.
TEST(ImpossibleMessages, AreThoseOfARankOfTheWorld) {
  Controller::Options options;
  options.size = 2;
  options.ranks = {4, 7};
  Controller controller(options);
  Ready ready;
  ready.name = "x";
  ready.spec = tensor("x");
  for (int i = 0; i < 2; ++i) controller.receive(1, message(ready));
  const Effects effects = controller.take_effects();
  ASSERT_TRUE(effects.fatal);
  EXPECT_THAT(effects.fatal->what(),
              HasSubstr(": rank 7 broke the control protocol: it said \"x\" twice"));
}

}  // namespace
}  // namespace horon::core::impossible_messages_test

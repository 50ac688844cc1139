// How a member learns which entries another one has.
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "horon/core/negotiation/controller.h"

namespace horon::core::controller_seek_test {
namespace {

using ::testing::ElementsAre;

constexpr Nanos kSecond = 1'000'000'000;

std::unique_ptr<Controller> make(int rank, int size) {
  Controller::Options options;
  options.rank = rank;
  options.size = size;
  return std::make_unique<Controller>(options);
}

SpecPtr tensor(const std::string& name) {
  EntrySpec spec;
  spec.parts = {{name, {4}}};
  return std::make_shared<const EntrySpec>(spec);
}

TEST(ControllerSeek, WhatIsSoughtIsFoundOnceItIsThereAndOnlyOnce) {
  for (const int seeker : {0, 1}) {
    const auto asks = make(seeker, 2), has = make(1 - seeker, 2);
    const auto submit = [&](Ticket ticket, const std::string& name) {
      has->submit({ticket, name, tensor(name), {}, {}});
    };
    // Exchanges all messages, and returns what was found.
    const auto found = [&] {
      for (const Outgoing& out : asks->take_effects().messages) has->receive(seeker, out.bytes);
      for (const Outgoing& out : has->take_effects().messages) asks->receive(1 - seeker, out.bytes);
      std::vector<std::string> names;
      for (const Found& each : asks->take_effects().found) {
        names.push_back(each.name + (each.gone ? " is gone" : ""));
      }
      return names;
    };
    submit(1, "early");
    for (const char* const name : {"early", "late", "late", "wrong", "never"}) asks->seek(name);
    EXPECT_THAT(found(), ElementsAre("early"));
    submit(2, "other");
    submit(3, "late");
    EXPECT_THAT(found(), ElementsAre("late"));
    submit(4, "late");  // is in flight
    has->refuse("wrong", "no good");
    EXPECT_THAT(found(), ElementsAre("wrong"));
    asks->seek("other");
    EXPECT_THAT(found(), ElementsAre("other"));
    has->shutdown();
    EXPECT_THAT(found(), ElementsAre("never is gone"));
    for (const char* const name : {"late", "more"}) asks->seek(name);
    EXPECT_THAT(found(), ElementsAre("late", "more is gone"));
  }
}

TEST(ControllerSeek, WhoWaitsForAnAnswerAsksWhetherTheOthersLive) {
  for (const int seeker : {0, 1}) {
    const auto asks = make(seeker, 2);
    asks->tick(0);
    asks->expect_found(1);
    EXPECT_FALSE(asks->at_rest());
    EXPECT_TRUE(asks->waits());
    asks->tick(kSecond / 2);
    EXPECT_TRUE(asks->take_effects().messages.empty());
    asks->tick(kSecond);
    EXPECT_EQ(asks->take_effects().messages.size(), 1U);
    asks->expect_found(-1);
    EXPECT_TRUE(asks->at_rest());
  }
}

}  // namespace
}  // namespace horon::core::controller_seek_test

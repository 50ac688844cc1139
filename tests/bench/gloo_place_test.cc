// Where Gloo's ranks would listen, in builds without it too.
#include "horon/bench/gloo_place.h"

#include <gtest/gtest.h>

namespace horon::bench {
namespace {

constexpr auto kKind = CollectiveKind::Allreduce;

TEST(GlooPlace, OneHostHasOneWithoutBeingAsked) {
  const GlooPlace place = find_gloo_place(kKind, {"a", "a"}, "");
  EXPECT_EQ(place.interface, "lo");
  EXPECT_EQ(place.unavailable, "");
  EXPECT_EQ(find_gloo_place(kKind, {"a", "a"}, "eth1").interface, "eth1");
}

// The address of a host's own name may be 127.0.1.1, and a connection that fails ends the run.
TEST(GlooPlace, SeveralHostsNeedAnInterface) {
  const std::string unavailable = find_gloo_place(kKind, {"a", "b", "a"}, "").unavailable;
  EXPECT_NE(unavailable.find("--gloo-interface"), std::string::npos) << unavailable;
  const GlooPlace place = find_gloo_place(kKind, {"a", "b", "a"}, "eth0");
  EXPECT_EQ(place.interface, "eth0");
  EXPECT_EQ(place.unavailable, "");
}

TEST(GlooPlace, WhatGlooCanNotRunNeedsNone) {
  const auto unavailable = [](CollectiveKind kind, const std::vector<std::string>& hosts) {
    return find_gloo_place(kind, hosts, "eth0").unavailable;
  };
  EXPECT_EQ(unavailable(CollectiveKind::Reducescatter, {"a", "b"}), "it has no reducescatter");
  EXPECT_EQ(unavailable(kKind, {"a"}), "it has nothing to do for one rank");
}

}  // namespace
}  // namespace horon::bench

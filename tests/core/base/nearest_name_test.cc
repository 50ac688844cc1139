#include "horon/core/base/nearest_name.h"

#include <array>

#include <gtest/gtest.h>

namespace horon::core {
namespace {

TEST(NearestName, CountsLettersAddedDroppedAndChanged) {
  constexpr std::array<std::string_view, 3> names = {"bucket", "first_bucket", "log"};
  EXPECT_EQ(nearest_name("buckets", names), "bucket");
  EXPECT_EQ(nearest_name("bukcet", names), "bucket");
  EXPECT_EQ(nearest_name("firstbucket", names), "first_bucket");
  EXPECT_EQ(nearest_name("lag", names), "log");
  EXPECT_EQ(nearest_name("log", names), "log");
  EXPECT_EQ(nearest_name("fir", names), "first_bucket") << "it begins so";
}

TEST(NearestName, WhatMayBeMeant) {
  constexpr std::array<std::string_view, 2> names = {"timeline", "log"};
  for (const char* typed :
       {"timelne", "tmeline", "logs", "tim", "timeline_file", "no_timeline", ""}) {
    EXPECT_TRUE(may_mean_one_of(typed, names)) << typed;
  }
  for (const char* typed : {"root", "map", "service_host"}) {
    EXPECT_FALSE(may_mean_one_of(typed, names)) << typed;
  }
}

TEST(NearestName, EmptyAndEqualCases) {
  constexpr std::array<std::string_view, 2> names = {"ab", "ac"};
  EXPECT_EQ(nearest_name("ad", names), "ab");
  EXPECT_EQ(nearest_name("", names), "ab");
  EXPECT_EQ(nearest_name("x", {}), "");
}

}  // namespace
}  // namespace horon::core

#include "horon/core/base/config.h"

#include <cstdlib>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;
using Variables = std::map<std::string, std::string>;

Config parse(const Variables& environment, const Variables& overrides = {}) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment) names.push_back(name);
  const auto lookup = [&](const std::string& name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
  return Config::parse(lookup, names, overrides);
}

// What the error says; fails if there is none.
std::string refusal(const Variables& environment, const Variables& overrides = {}) {
  try {
    parse(environment, overrides);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    return error.what();
  }
  ADD_FAILURE() << "this was taken as right";
  return {};
}

Config::Value value_of(const Config& config, const std::string& name) {
  for (const Config::Value& value : config.values()) {
    if (value.name == name) return value;
  }
  ADD_FAILURE() << name << " is not listed";
  return {};
}

TEST(Config, IsAllDefaultsWithoutVariables) {
  const Config config = parse({{"HOME", "/root"}, {"HORONS_OWN", "x"}});
  EXPECT_EQ(config.fusion_bytes_max, 64 << 20);
  EXPECT_EQ(config.stall_warn_s, 10);
  EXPECT_TRUE(config.shared_memory);
  for (const Config::Value& value : config.values()) EXPECT_EQ(value.origin, "default");
}

TEST(Config, ListsEveryKnobOnce) {
  std::set<std::string> names;
  for (const Config::Value& value : parse({}).values()) {
    EXPECT_THAT(value.name, testing::StartsWith("HORON_"));
    EXPECT_FALSE(value.meaning.empty()) << value.name;
    EXPECT_TRUE(names.insert(value.name).second) << value.name;
  }
  EXPECT_GE(names.size(), 13U);
}

TEST(Config, TakesItsOwnDefaultsAsInput) {
  // A default outside its own range would be an error for a user who sets it explicitly.
  Variables environment;
  for (const Config::Value& value : parse({}).values()) environment[value.name] = value.value;
  const Config config = parse(environment);
  EXPECT_EQ(config.agreed_values(), Config{}.agreed_values());
  for (const Config::Value& value : config.values()) {
    EXPECT_EQ(value.value, environment[value.name]) << value.name;
    EXPECT_EQ(value.origin, "environment");
  }
}

TEST(Config, OverrideWinsOverEnvironmentWinsOverDefault) {
  const Config config = parse({{"HORON_BUCKET_BYTES", "100"}, {"HORON_LOG", "debug"}},
                              {{"HORON_BUCKET_BYTES", "200"}});
  EXPECT_EQ(config.bucket_bytes, 200);
  EXPECT_EQ(value_of(config, "HORON_BUCKET_BYTES").origin, "init()");
  EXPECT_EQ(value_of(config, "HORON_LOG").origin, "environment");
  EXPECT_EQ(value_of(config, "HORON_SPIN_US").origin, "default");
}

TEST(Config, BytesTakeSuffixes) {
  const std::map<std::string, int64_t> cases = {
      {"0", 0},         {"17", 17},          {"17B", 17},
      {"2K", 2000},     {"2M", 2000000},     {"2G", 2000000000},
      {"2KiB", 2048},   {"64MiB", 64 << 20}, {"3GiB", 3LL << 30},
      {"1.5KiB", 1536}, {"0.5M", 500000},    {"1024GiB", 1LL << 40}};
  for (const auto& [text, bytes] : cases) {
    EXPECT_EQ(parse({{"HORON_FUSION_BYTES", text}}).fusion_bytes_max, bytes) << text;
  }
}

TEST(Config, RefusesBadBytes) {
  for (const char* text : {"", " 1", "1 ", "x", "1KB", "1kib", "1TiB2", "-1", "1.5", "0.3K1", "nan",
                           "inf", "1025GiB", "1e400", "0x10", "1,000"}) {
    EXPECT_THAT(refusal({{"HORON_FUSION_BYTES", text}}),
                AllOf(HasSubstr("HORON_FUSION_BYTES"), HasSubstr(text)))
        << text;
  }
}

TEST(Config, RefusesBadNumbers) {
  for (const char* text : {"", "ten", "10s", "-0.5", "nan", "inf", "-inf", "1e9", "86400.5"}) {
    EXPECT_THAT(refusal({{"HORON_DEAD_AFTER_S", text}}), HasSubstr("HORON_DEAD_AFTER_S")) << text;
  }
  for (const char* text : {"", "1.5", "-2", "1000001", "1K", "99999999999999999999"}) {
    EXPECT_THAT(refusal({{"HORON_SPIN_US", text}}), HasSubstr("HORON_SPIN_US")) << text;
  }
  EXPECT_EQ(parse({{"HORON_SPIN_US", "0"}}).spin_us, 0);
  EXPECT_EQ(parse({{"HORON_DEAD_AFTER_S", "0.25"}}).dead_after_s, 0.25);
}

TEST(Config, NamesTheRange) {
  EXPECT_THAT(refusal({{"HORON_STALL_WARN_S", "100000"}}), HasSubstr("0 to 86400 seconds"));
  EXPECT_THAT(refusal({{"HORON_SPIN_US", "-1"}}), HasSubstr("0 to 1000000 microseconds"));
  EXPECT_THAT(refusal({{"HORON_BUCKET_BYTES", "0"}}), HasSubstr("1 B to 1 TiB"));
  EXPECT_EQ(parse({{"HORON_PIECE_BYTES", "0"}}).piece_bytes, 0);
  EXPECT_EQ(parse({{"HORON_PIECE_BYTES", "512KiB"}}).piece_bytes, 512 << 10);
}

TEST(Config, SwitchesAndChoices) {
  for (const char* text : {"1", "true", "on", "yes"}) {
    EXPECT_TRUE(parse({{"HORON_SHARED_MEMORY", text}}).shared_memory) << text;
  }
  for (const char* text : {"0", "false", "off", "no"}) {
    EXPECT_FALSE(parse({{"HORON_SHARED_MEMORY", text}}).shared_memory) << text;
  }
  for (const char* text : {"", "2", "TRUE", "maybe"}) {
    EXPECT_THAT(refusal({{"HORON_SHARED_MEMORY", text}}), HasSubstr("HORON_SHARED_MEMORY"));
  }
  EXPECT_EQ(parse({{"HORON_ALLREDUCE", "mpi"}}).allreduce, "mpi");
  for (const char* text : {"", "nccl?", "auto,", "auto, shm", "sh"}) {
    EXPECT_THAT(refusal({{"HORON_ALLREDUCE", text}}), HasSubstr("auto, shm, hier, mpi")) << text;
  }
}

TEST(Config, UnknownVariableNamesTheNearestKnob) {
  EXPECT_EQ(refusal({{"HORON_FUSION_BYTE", "1"}}),
            "HORON_FUSION_BYTE is not a knob; did you mean HORON_FUSION_BYTES?");
  EXPECT_THAT(refusal({{"HORON_TIMELNE", "x"}}), HasSubstr("did you mean HORON_TIMELINE?"));
  EXPECT_THAT(refusal({}, {{"HORON_LOGS", "info"}}), HasSubstr("did you mean HORON_LOG?"));
  EXPECT_THAT(refusal({}, {{"fusion", "1"}}), HasSubstr("fusion is not a knob"));
  EXPECT_THAT(refusal({{"HORON_", ""}}), HasSubstr("is not a knob"));
  EXPECT_THAT(refusal({{"HORON_STALL", "1"}}), HasSubstr("did you mean HORON_STALL_"));
  EXPECT_THAT(refusal({{"HORON_TIMELINE_FILE", "x"}}), HasSubstr("did you mean HORON_TIMELINE?"));
  EXPECT_THAT(refusal({}, {{"HORON_ROOT", "/opt"}}), HasSubstr("is not a knob"));
  for (const char* of_horovod : {"FUSION_THRESHOLD", "HIERARCHICAL_ALLREDUCE",
                                 "STALL_CHECK_TIME_SECONDS", "TIMELINE_MARK_CYCLES"}) {
    EXPECT_THAT(refusal({{concat("HORON_", of_horovod), "1"}}), HasSubstr("is not a knob"));
  }
}

TEST(Config, VariablesOfOthersEndNoJob) {
  EXPECT_THAT(
      parse({{"HORON_PYTHON_EXECUTABLE", "python3"}, {"HORON_PORT_80_TCP_ADDR", "::1"}}).unknown(),
      SizeIs(2));
  EXPECT_THAT(parse({{"HORON_ROOT", "/opt/horon"}, {"HORON_VERSION", "1"}}).unknown(), IsEmpty());
  EXPECT_THAT(
      parse({{"HORON_SERVICE_HOST", "10.0.0.1"}, {"HORON_PORT", "tcp://10.0.0.1"}}).unknown(),
      UnorderedElementsAre("HORON_SERVICE_HOST", "HORON_PORT"));
}

TEST(Config, WhatMustAgree) {
  const std::vector<std::string> plain = parse({}).agreed_values();
  EXPECT_EQ(parse({{"HORON_LOG", "debug"}, {"HORON_TIMELINE", "t"}, {"HORON_HOST_ID", "a"}})
                .agreed_values(),
            plain);
  EXPECT_NE(parse({{"HORON_BUCKET_BYTES", "1"}}).agreed_values(), plain);
  EXPECT_NE(parse({{"HORON_ALLREDUCE", "mpi"}}).agreed_values(), plain);
  // The same value from another source or in other words is no difference.
  EXPECT_EQ(parse({{"HORON_BUCKET_BYTES", "1KiB"}}).agreed_values(),
            parse({}, {{"HORON_BUCKET_BYTES", "1024"}}).agreed_values());
  EXPECT_THAT(parse({{"HORON_BUCKET_BYTES", "1KiB"}}).agreed_values(),
              AllOf(testing::Contains("HORON_BUCKET_BYTES=1024"),
                    testing::Not(testing::Contains(HasSubstr("HORON_LOG")))));
}

TEST(Config, ReadsTheProcessEnvironment) {
  ASSERT_EQ(setenv("HORON_BUCKET_BYTES", "3KiB", 1), 0);
  EXPECT_EQ(Config::from_environment().bucket_bytes, 3072);
  EXPECT_TRUE(environment_has("HORON_BUCKET_BYTES"));
  ASSERT_EQ(unsetenv("HORON_BUCKET_BYTES"), 0);
  EXPECT_FALSE(environment_has("HORON_BUCKET_BYTES"));
  ASSERT_EQ(setenv("HORON_BUCKET_BITES", "1", 1), 0);
  EXPECT_THROW(Config::from_environment(), Error);
  ASSERT_EQ(unsetenv("HORON_BUCKET_BITES"), 0);
}

}  // namespace
}  // namespace horon::core

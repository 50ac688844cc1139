#include <cstdio>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>

#include "horon/core/base/error.h"
#include "horon/core/tuning/tuning_log.h"
#include "horon/core/tuning/warm_start_file.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/grouping_locale.h"

namespace horon::core {
namespace {

using test::error_of;
using testing::AllOf;
using testing::HasSubstr;

// A file that only this test uses, and that is removed at its end.
class TuningFiles : public testing::Test {
 protected:
  TuningFiles()
      : path_(testing::TempDir() + "tuning." + std::to_string(::getpid()) + "." +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {
    (void)std::remove(path_.c_str());
  }
  ~TuningFiles() override { (void)std::remove(path_.c_str()); }

  std::string content() const {
    std::ifstream file(path_);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  void write(const std::string& text) const { std::ofstream(path_) << text; }

  const std::string path_;
};

TEST_F(TuningFiles, TheLogIsATable) {
  write("what an earlier process has left");
  const TuningSettings settings = {{"bucket_bytes", 4194304}, {"first_bucket_bytes", 262144}};
  const TuningLog log(path_, settings);
  log.add({"gradients.0", 1.25, "search", settings, 3, 10, 0.0123456789, 0.001, 1});
  TuningLog(path_, settings).add({"a \"b\"", 20000, "kept", settings, 3, 0, 0.01, 0, 0.98765});
  EXPECT_EQ(content(),
            "reducer,elapsed_s,stage,bucket_bytes,first_bucket_bytes,buckets,steps,step_ms,"
            "quartile_ms,over_start\n"
            "\"gradients.0\",1.25,search,4194304,262144,3,10,12.3457,1,1\n"
            "\"a \"\"b\"\"\",20000,kept,4194304,262144,3,0,10,0,0.9877\n");
}

TEST_F(TuningFiles, ALogThatCantBeWrittenSaysWhy) {
  const std::string text = error_of([] {
    (void)TuningLog("/nowhere/at/all.csv", {{"bucket_bytes", 1}});
  });
  EXPECT_THAT(text, AllOf(HasSubstr("HORON_AUTOTUNE_LOG"), HasSubstr("/nowhere/at/all.csv"),
                          HasSubstr("No such file")));
}

TEST_F(TuningFiles, WhatIsSavedIsLoaded) {
  const WarmStartFile file(path_);
  EXPECT_TRUE(file.load().empty());
  file.save("gradients.0", {"8 gradients, 2 ranks", {{"bucket_bytes", 65536}, {"first", 1}}});
  file.save("other\tname", {"2 facts\nand more", {{"bucket_bytes", 3}}});
  file.save("gradients.0", {"9 gradients, 2 ranks", {{"bucket_bytes", 131072}}});
  const WarmStartFile::Entries entries = file.load();
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries.at("gradients.0").facts, "9 gradients, 2 ranks");
  EXPECT_EQ(entries.at("gradients.0").settings, (TuningSettings{{"bucket_bytes", 131072}}));
  EXPECT_EQ(entries.at("other name").facts, "2 facts and more");
  EXPECT_EQ(content(),
            "# Horon autotuning 1: reducer, facts, settings\n"
            "gradients.0\t9 gradients, 2 ranks\tbucket_bytes=131072\n"
            "other name\t2 facts and more\tbucket_bytes=3\n");
  ASSERT_TRUE(file.find("other\tname"));
  EXPECT_EQ(file.find("other\tname")->settings, (TuningSettings{{"bucket_bytes", 3}}));
  EXPECT_FALSE(file.find("none"));
}

// A program may have set a locale that writes 4,194,304 or 12,3.
TEST_F(TuningFiles, AreTheSameInEveryLocale) {
  const test::GroupingLocale locale;
  const TuningSettings settings = {{"bucket_bytes", 4194304}};
  const WarmStartFile file(path_);
  file.save("gradients.0", {"8 gradients", settings});
  EXPECT_EQ(file.load().at("gradients.0").settings, settings);
  TuningLog(path_, settings).add({"gradients.0", 1.5, "kept", settings, 3, 1000, 0.01, 0, 1});
  EXPECT_THAT(content(), HasSubstr(",1.5,kept,4194304,3,1000,10,0,1\n"));
}

TEST_F(TuningFiles, AWrongFileIsRefusedAndLeftAlone) {
  for (const std::string& text :
       {std::string("epoch,loss\n1,2\n"), std::string(),
        std::string("# Horon autotuning 1: reducer, facts, settings\ngradients.0 and no tabs\n"),
        std::string("# Horon autotuning 1: reducer, facts, settings\na\tb\tbucket_bytes=many\n"),
        std::string("# Horon autotuning 1: reducer, facts, settings\na\tb\tbucket_bytes=-4\n"),
        std::string("# Horon autotuning 1: reducer, facts, settings\na\tb\t\n")}) {
    write(text);
    const WarmStartFile file(path_);
    EXPECT_THAT(error_of([&] { (void)file.load(); }),
                AllOf(HasSubstr("HORON_AUTOTUNE_WARM_START"), HasSubstr(path_)))
        << text;
    EXPECT_NE(error_of([&] { file.save("a", {"b", {{"c", 1}}}); }), "");
    EXPECT_EQ(content(), text);
  }
}

TEST_F(TuningFiles, AFileThatCantBeWrittenSaysWhy) {
  const WarmStartFile file("/nowhere/at/all");
  EXPECT_TRUE(file.load().empty());
  EXPECT_THAT(error_of([&] { file.save("a", {"b", {{"c", 1}}}); }), HasSubstr("/nowhere/at/all"));
}

}  // namespace
}  // namespace horon::core

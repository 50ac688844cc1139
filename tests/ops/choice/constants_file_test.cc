#include "horon/ops/choice/constants_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

namespace horon::ops {
namespace {

namespace fs = std::filesystem;

class ConstantsFileTest : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }
  void write(const std::string& content) {
    fs::create_directories(file_folder_);
    std::ofstream(path_) << content;
  }
  const fs::path folder_ =
      fs::temp_directory_path() / ("constants_file_" + std::to_string(::getpid()));
  const fs::path file_folder_ = folder_ / "cache" / "of_user";
  const std::string path_ = file_folder_ / "constants";
  const ConstantsFile file_{path_};
  const MachineConstants constants_{0.25, 9000.5, 9100, 9200.5, 31, 117.375};
};

TEST_F(ConstantsFileTest, KeepsALineForEachJob) {
  EXPECT_EQ(file_.load("1 host: a 2", 20'000), std::nullopt);
  EXPECT_TRUE(file_.save("1 host: a 2", 20'000, constants_));
  EXPECT_TRUE(file_.save("2 hosts: a 1, b 1", 20'000, {}));
  EXPECT_EQ(file_.load("1 host: a 2", 20'000), constants_);
  EXPECT_EQ(file_.load("2 hosts: a 1, b 1", 20'000), MachineConstants());
  EXPECT_EQ(file_.load("2 hosts: a 1, c 1", 20'000), std::nullopt);
  EXPECT_TRUE(file_.save("1 host: a 2", 20'001, {}));
  EXPECT_EQ(file_.load("1 host: a 2", 20'001), MachineConstants());
  EXPECT_EQ(std::distance(fs::directory_iterator(file_folder_), {}), 1) << "no temporary file";
}

TEST_F(ConstantsFileTest, OldLinesAndThoseOfTheFutureDoNotCount) {
  ASSERT_TRUE(file_.save("job", 20'000, constants_));
  EXPECT_EQ(file_.load("job", 20'000 + ConstantsFile::kDaysMax), constants_);
  EXPECT_EQ(file_.load("job", 20'001 + ConstantsFile::kDaysMax), std::nullopt);
  EXPECT_EQ(file_.load("job", 19'999), std::nullopt);
}

TEST_F(ConstantsFileTest, WhatIsNoSuchFileIsAsGoodAsNone) {
  for (const std::string content :
       {"", "# Horon machine constants 0\nof another version\n",
        "# Horon machine constants 1: job, day, constants\njob\tx\ty\n",
        "# Horon machine constants 1: job, day, constants\njob\t20000\thandoff_us=4\n",
        "# Horon machine constants 1: job, day, constants\njob"}) {
    write(content);
    EXPECT_EQ(file_.load("job", 20'000), std::nullopt) << content;
    EXPECT_TRUE(file_.save("job", 20'000, constants_));
    EXPECT_EQ(file_.load("job", 20'000), constants_) << content;
  }
}

TEST_F(ConstantsFileTest, AForeignFileStaysAsItIs) {
  for (const std::string content : {"something else\n", "x"}) {
    write(content);
    EXPECT_FALSE(file_.save("job", 20'000, constants_));
    EXPECT_EQ(file_.load("job", 20'000), std::nullopt);
    std::ifstream file(path_);
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), content);
  }
}

// No process is at the other end of the pipe.
TEST_F(ConstantsFileTest, APipeIsNotReadAndNotWritten) {
  fs::create_directories(file_folder_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(file_.load("job", 20'000), std::nullopt);
  EXPECT_FALSE(file_.save("job", 20'000, constants_));
}

TEST_F(ConstantsFileTest, NothingIsKeptInADevice) {
  const ConstantsFile device("/dev/null");
  EXPECT_FALSE(device.save("job", 20'000, constants_));
  EXPECT_EQ(device.load("job", 20'000), std::nullopt);
}

TEST_F(ConstantsFileTest, DoesNotGrowForEver) {
  for (size_t job = 0; job <= ConstantsFile::kLinesMax; ++job) {
    ASSERT_TRUE(file_.save("job " + std::to_string(job), 20'000, constants_));
  }
  EXPECT_EQ(file_.load("job 0", 20'000), std::nullopt);
  EXPECT_EQ(file_.load("job 1", 20'000), constants_);
  // A job has one line, however often it measures.
  for (size_t i = 0; i < 2; ++i) ASSERT_TRUE(file_.save("job 2", 20'000, constants_));
  EXPECT_EQ(file_.load("job 1", 20'000), constants_);
}

TEST_F(ConstantsFileTest, WhereNothingCanBeWrittenNothingIsThrown) {
  write("");
  const ConstantsFile below_a_file(path_ + "/constants");
  EXPECT_FALSE(below_a_file.save("job", 20'000, constants_));
  EXPECT_EQ(below_a_file.load("job", 20'000), std::nullopt);
  const ConstantsFile none("");
  EXPECT_FALSE(none.save("job", 20'000, constants_));
  EXPECT_EQ(none.load("job", 20'000), std::nullopt);
}

TEST_F(ConstantsFileTest, TabsAndLinesInAJobDoNoHarm) {
  ASSERT_TRUE(file_.save("a\tb\nc", 20'000, constants_));
  EXPECT_EQ(file_.load("a\tb\nc", 20'000), constants_);
}

}  // namespace
}  // namespace horon::ops

#include "horon/core/base/replace_file.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sched.h>
#include <stdexcept>
#include <string>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>

#include "horon/tests/support/error_of.h"

namespace {

std::atomic<int> folders_on_disk{0};

}  // namespace

// Replaces the function of the C library.
extern "C" int fsync(int file) {
  struct stat found {};
  if (::fstat(file, &found) == 0 && S_ISDIR(found.st_mode)) ++folders_on_disk;
  return static_cast<int>(::syscall(SYS_fsync, file));
}

namespace horon::core {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;

class ReplaceFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directory(folder_); }
  void TearDown() override { fs::remove_all(folder_); }
  std::string content() const {
    std::ifstream in(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const fs::path folder_ =
      fs::temp_directory_path() / ("replace_file_" + std::to_string(::getpid()));
  const std::string path_ = folder_ / "file";
};

TEST_F(ReplaceFile, TakesThePlaceOfTheOldOne) {
  replace_file(path_, "long text");
  EXPECT_EQ(content(), "long text");
  replace_file(path_, [](const std::string& temporary) { std::ofstream(temporary) << "short"; });
  EXPECT_EQ(content(), "short");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

TEST_F(ReplaceFile, TheRenameIsBroughtToTheDiskToo) {
  const int before = folders_on_disk;
  replace_file(path_, "text");
  EXPECT_EQ(folders_on_disk, before + 1);
}

// No thread uses the temporary file of another one.
TEST_F(ReplaceFile, SeveralThreadsReplaceOneFile) {
  const std::vector<std::string> contents = {std::string(30'000, 'a'), std::string(20'000, 'b')};
  std::vector<std::string> errors(contents.size());
  std::barrier all_have_begun(std::ssize(contents));
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < contents.size(); ++i) {
      threads.emplace_back([&, i] {
        errors[i] = error_of([&] {
          replace_file(path_, [&](const std::string& temporary) {
            std::ofstream(temporary) << contents[i];
            all_have_begun.arrive_and_wait();
          });
        });
      });
    }
  }
  EXPECT_THAT(errors, Each("no error"));
  EXPECT_THAT(contents, Contains(content()));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
}

// The name of the temporary file that is used in a process which is the first of a container.
// Nothing if no container may be made here.
std::optional<std::string> temporary_in_a_container(const std::string& path) {
  constexpr int kNoContainer = 77;
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t outer = ::fork();
  const auto tell = [&](const std::string& temporary) {
    (void)!::write(ends[1], temporary.data(), temporary.size());
  };
  if (outer == 0) {
    if (::unshare(CLONE_NEWPID) != 0) ::_exit(kNoContainer);
    if (::fork() == 0) {
      [&]() noexcept { replace_file(path, tell); }();
    }
    ::wait(nullptr);
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string name(4096, '\0');
  name.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], name.data(), 4096), 0)));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(outer, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kNoContainer) return std::nullopt;
  return name;
}

// Processes of two containers or hosts that share a folder may have the same process number.
TEST_F(ReplaceFile, ContainersHaveNoTemporaryFileInCommon) {
  const std::optional<std::string> one = temporary_in_a_container(path_);
  if (!one) GTEST_SKIP() << "no PID namespaces here";
  EXPECT_THAT(*one, HasSubstr(path_ + ".tmp"));
  EXPECT_NE(one, temporary_in_a_container(path_));
}

TEST_F(ReplaceFile, HasThePermissionsOfANewFile) {
  const mode_t before = ::umask(026);
  replace_file(path_, "text");
  ::umask(before);
  struct stat found {};
  ASSERT_EQ(::stat(path_.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0640);
}

TEST_F(ReplaceFile, ALinkStaysALink) {
  for (const std::string target : {"target", "folder/target"}) {
    fs::create_directory(folder_ / "folder");
    fs::remove(path_);
    fs::create_symlink("second", path_);
    fs::remove(folder_ / "second");
    fs::create_symlink(target, folder_ / "second");
    for (const std::string text :
         {"the first time", "again"}) {  // the target is not there at first
      replace_file(path_, text);
      EXPECT_TRUE(fs::is_symlink(path_));
      EXPECT_TRUE(fs::is_symlink(folder_ / "second"));
      EXPECT_TRUE(fs::is_regular_file(fs::symlink_status(folder_ / target)));
      EXPECT_EQ(content(), text);
    }
  }
  fs::create_symlink("loop", folder_ / "loop");
  EXPECT_THAT(error_of([&] { replace_file(folder_ / "loop", "text"); }), HasSubstr("can't write"));
}

TEST_F(ReplaceFile, WhatIsNoFileIsWrittenToAsItIs) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  std::string got;
  {
    const std::jthread reader([&] { got = content(); });
    replace_file(path_, "text");
  }
  EXPECT_EQ(got, "text");
  EXPECT_TRUE(fs::is_fifo(path_));
  require_replaceable(path_);
  replace_file("/dev/null", "text");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_THAT(error_of([] { replace_file("/dev/full", "text"); }),
              HasSubstr("can't write /dev/full: No space left"));
}

TEST_F(ReplaceFile, WhetherItCanBeDoneIsToldBefore) {
  replace_file(path_, "old");
  require_replaceable(path_);
  require_replaceable(path_ + "_new");
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  EXPECT_THAT(error_of([&] { require_replaceable(path_ + "/none"); }),
              HasSubstr("can't write " + path_ + "/none: "));
  EXPECT_THAT(error_of([&] { require_replaceable(folder_); }), HasSubstr("Is a directory"));
}

TEST_F(ReplaceFile, FailureLeavesTheOldOneAlone) {
  replace_file(path_, "old");
  const auto half = [](const std::string& temporary) {
    std::ofstream(temporary) << "half";
    throw std::runtime_error("the disk is full");
  };
  EXPECT_THAT(error_of([&] { replace_file(path_, half); }),
              AllOf(HasSubstr("can't write " + path_), HasSubstr("the disk is full")));
  EXPECT_EQ(content(), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_), {}), 1);
  EXPECT_THAT(error_of([&] { replace_file(path_ + "/none", "new"); }),
              HasSubstr("Not a directory"));
}

}  // namespace
}  // namespace horon::core

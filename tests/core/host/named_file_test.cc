#include "horon/core/host/named_file.h"

#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <filesystem>
#include <string>
#include <sys/random.h>
#include <unistd.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/tests/support/error_of.h"
#include "horon/tests/support/process_ranks.h"

namespace horon::core {
namespace {

uint64_t new_number() {
  uint64_t number = 0;
  EXPECT_EQ(getrandom(&number, sizeof number, 0), static_cast<ssize_t>(sizeof number));
  return number;
}

bool exists(uint64_t number) { return std::filesystem::exists(path_of_named_file(number)); }

TEST(NamedFile, HasItsNumberAsItsName) {
  EXPECT_EQ(path_of_named_file(0xab), "/dev/shm/horon-00000000000000ab");
  EXPECT_EQ(path_of_named_file(UINT64_MAX), "/dev/shm/horon-ffffffffffffffff");
}

TEST(NamedFile, IsThereUntilItIsRemoved) {
  const uint64_t number = new_number();
  const int file = make_named_file(number);
  EXPECT_TRUE(exists(number));
  EXPECT_EQ(fcntl(file, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  (void)remove_abandoned_files();
  EXPECT_TRUE(exists(number));
  const uint64_t other = new_number();
  EXPECT_TRUE(renumber_named_file(number, other));
  EXPECT_FALSE(exists(number));
  EXPECT_TRUE(exists(other));
  EXPECT_FALSE(renumber_named_file(number, new_number()));
  remove_named_file(other);
  EXPECT_FALSE(exists(other));
  close(file);
}

TEST(NamedFile, IsForThisUserAlone) {
  const uint64_t number = new_number();
  const int file = make_named_file(number);
  const auto rights = std::filesystem::status(path_of_named_file(number)).permissions();
  EXPECT_EQ(rights, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  remove_named_file(number);
  close(file);
}

TEST(NamedFile, IsNotMadeTwice) {
  const uint64_t number = new_number();
  const int file = make_named_file(number);
  EXPECT_THAT(test::error_of([&] { make_named_file(number); }),
              testing::EndsWith(path_of_named_file(number) + ": File exists"));
  remove_named_file(number);
  close(file);
}

TEST(NamedFile, OfAProcessThatCrashedIsFound) {
  const uint64_t number = new_number();
  const int end = end_of_child([number] {
    (void)make_named_file(number);
    if (exists(number)) raise(SIGKILL);
  });
  EXPECT_EQ(end, SIGKILL);
  (void)remove_abandoned_files();  // or another process of this user has
  EXPECT_FALSE(exists(number));
}

TEST(NamedFile, GoesAtTheExitOfItsProcess) {
  const uint64_t number = new_number();
  const uint64_t renumbered = new_number();
  const int end = end_of_child([number, renumbered] {
    (void)make_named_file(number);
    const uint64_t first = new_number();
    (void)make_named_file(first);
    (void)renumber_named_file(first, renumbered);
    std::exit(exists(number) && exists(renumbered) ? 0 : 1);
  });
  EXPECT_EQ(end, 0);
  EXPECT_FALSE(exists(number));
  EXPECT_FALSE(exists(renumbered));
}

// A forked child has its parent's list of files too.
TEST(NamedFile, StaysAtTheExitOfAChild) {
  const uint64_t number = new_number();
  const int file = make_named_file(number);
  EXPECT_EQ(end_of_child([] { std::exit(0); }), 0);
  EXPECT_TRUE(exists(number));
  const uint64_t of_child = new_number();
  EXPECT_EQ(end_of_child([of_child] {
              (void)make_named_file(of_child);
              std::exit(0);
            }),
            0);
  EXPECT_TRUE(exists(number));
  EXPECT_FALSE(exists(of_child));
  remove_named_file(number);
  close(file);
}

// Nobody may come later to remove them.
TEST(NamedFile, OfAProcessThatCrashedGoesAtTheExitOfAnother) {
  const uint64_t number = new_number();
  const int end = end_of_child([number] {
    (void)make_named_file(new_number());
    (void)end_of_child([number] {
      (void)make_named_file(number);
      raise(SIGKILL);
    });
    std::exit(0);
  });
  EXPECT_EQ(end, 0);
  EXPECT_FALSE(exists(number));
}

TEST(NamedFile, OfAnotherUserIsLeftAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "only the user root can give a file away";
  const std::string path = path_of_named_file(new_number());
  close(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_given = chown(path.c_str(), 65534, 65534) == 0;
  (void)remove_abandoned_files();
  EXPECT_EQ(std::filesystem::exists(path), is_given);
  unlink(path.c_str());
}

TEST(NamedFile, OthersAreLeftAlone) {
  const std::string path = path_of_named_file(new_number());
  const std::string longer = path + "0";
  const std::string no_number = path.substr(0, path.size() - 1) + "g";
  for (const std::string& name : {longer, no_number}) {
    close(open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  }
  (void)remove_abandoned_files();
  for (const std::string& name : {longer, no_number}) {
    EXPECT_TRUE(std::filesystem::exists(name)) << name;
    unlink(name.c_str());
  }
}

}  // namespace
}  // namespace horon::core

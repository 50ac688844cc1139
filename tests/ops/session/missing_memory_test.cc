// A host that refuses shared memory: what the job says about it, and that it works without. The
// test replaces memfd_create(), and flock(), which the files in /dev/shm need. Run on one host, and
// on two with ranks 1 and 2 on the second.
#include <cerrno>
#include <memory>
#include <string>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "horon/core/host/named_file.h"
#include "horon/core/host/shared_heap.h"
#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/support/own_user_namespace.h"

namespace {

bool memory_is_refused = false;
bool files_are_refused = false;

}  // namespace

extern "C" int memfd_create(const char* name, unsigned int flags) noexcept {
  if (!memory_is_refused) return static_cast<int>(syscall(SYS_memfd_create, name, flags));
  errno = EPERM;
  return -1;
}

// By its name flock(); in C++ that would hide the struct flock.
extern "C" int lock_file(int file, int operation) noexcept __asm__("flock");
extern "C" int lock_file(int file, int operation) noexcept {
  if (!files_are_refused) return static_cast<int>(syscall(SYS_flock, file, operation));
  errno = ENOLCK;
  return -1;
}

namespace horon {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

const std::string kWarning = "warning: no shared memory on host ";

enum class Refused { Nothing, Memory, MemoryAndFiles };

// What the job logs on this rank from its start to its end. `refused`: what this rank is refused.
std::string said_by_a_job(Refused refused, const InitOptions& options = {}) {
  memory_is_refused = refused != Refused::Nothing;
  files_are_refused = refused == Refused::MemoryAndFiles;
  testing::internal::CaptureStderr();
  init_session(options);
  memory_is_refused = files_are_refused = false;
  barrier();
  shutdown();
  return testing::internal::GetCapturedStderr();
}

bool has_several_hosts() {
  init_session();
  const bool several = local_size() < size();
  shutdown();
  return several;
}

TEST(MissingMemory, IsNamedWithItsHostAndRanks) {
  const bool several = has_several_hosts();
  const std::string text =
      said_by_a_job(test_rank() == test_size() - 1 ? Refused::MemoryAndFiles : Refused::Nothing);
  if (test_rank() != 0) {
    EXPECT_EQ(text, "");
    return;
  }
  if (several) {
    EXPECT_THAT(text, AllOf(HasSubstr(kWarning),
                            HasSubstr("/host1 (ranks 1 and 2): local rank 1: "
                                      "memfd_create: Operation not permitted"),
                            Not(HasSubstr("/host0")), HasSubstr("HORON_SHARED_MEMORY=0")));
    EXPECT_THAT(text, HasSubstr("on 2 hosts, MPI (another host has no shared memory)"));
  } else {
    EXPECT_THAT(text, AllOf(HasSubstr(kWarning),
                            HasSubstr(" (ranks 0 and 1): local rank 1: "
                                      "memfd_create: Operation not permitted"),
                            HasSubstr("; by way of /dev/shm, local rank 1: flock /dev/shm/horon-"),
                            HasSubstr("HORON_SHARED_MEMORY=0")));
    EXPECT_THAT(text, HasSubstr("on 1 host, MPI (no shared memory: local rank 1: memfd_create"));
  }
}

TEST(MissingMemory, OfEachHostIsNamedInOneWarning) {
  const bool several = has_several_hosts();
  const std::string text = said_by_a_job(Refused::MemoryAndFiles);
  if (test_rank() != 0) {
    EXPECT_EQ(text, "");
    return;
  }
  EXPECT_THAT(text, HasSubstr(kWarning));
  EXPECT_THAT(text, HasSubstr("MPI (no shared memory: local rank 0: memfd_create"));
  EXPECT_EQ(text.find(kWarning), text.rfind(kWarning));
  if (several) {
    EXPECT_THAT(text, AllOf(Not(HasSubstr("/host0")),  // its one rank needs none
                            HasSubstr("/host1 (ranks 1 and 2): local rank 0: ")));
  }
}

TEST(MissingMemory, IsNoNewsOfARankThatIsAloneOnItsHost) {
  if (!has_several_hosts()) GTEST_SKIP() << "for several hosts";
  const bool alone = test_rank() == 0;
  const std::string text = said_by_a_job(alone ? Refused::MemoryAndFiles : Refused::Nothing);
  EXPECT_THAT(text, Not(HasSubstr("warning")));
  if (alone) {
    EXPECT_THAT(text, HasSubstr(", shared memory and MPI"));
  }
}

TEST(MissingMemory, IsNoNewsWhereTheUserHasChosenMpi) {
  const std::string text =
      said_by_a_job(Refused::MemoryAndFiles, {.set = {{"HORON_SHARED_MEMORY", "0"}}});
  EXPECT_THAT(text, Not(HasSubstr("warning")));
  if (test_rank() == 0) {
    EXPECT_THAT(text, HasSubstr("MPI (no shared memory: HORON_SHARED_MEMORY=0)"));
  }
}

TEST(MissingMemory, NothingIsSaidWhereItIsNotMissing) {
  const std::string text = said_by_a_job(Refused::Nothing);
  EXPECT_THAT(text, Not(HasSubstr("warning")));
  if (test_rank() == 0) {
    EXPECT_THAT(text, HasSubstr(", shared memory and MPI"));
  }
}

// A block that waits to be used again has the only memory that there is.
TEST(MissingMemory, UnusedFilesMakeRoom) {
  const std::vector<int> ends = run_with_small_folder(1, 8, [](int) {
    memory_is_refused = true;
    const auto heap =
        std::make_shared<core::SharedHeap>(core::SharedHeap::kCachedBytesMax, core::Reach::ByName);
    heap->allocate(size_t{5} << 20, true).reset();
    return heap->allocate(size_t{6} << 20, true) != nullptr;
  });
  if (ends.empty()) GTEST_SKIP() << "no user namespaces are allowed here";
  EXPECT_EQ(ends, std::vector<int>{0});
}

TEST(MissingMemory, FilesTakeItsPlace) {
  if (const auto why = core::why_no_named_files(); !why.empty()) GTEST_SKIP() << why;
  const std::string text = said_by_a_job(Refused::Memory);
  EXPECT_THAT(text, Not(HasSubstr("warning")));
  if (test_rank() == 0) {
    EXPECT_THAT(text, HasSubstr(", shared memory (files in /dev/shm) and MPI"));
  }
}

}  // namespace
}  // namespace horon

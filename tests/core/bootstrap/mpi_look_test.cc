#include "horon/core/bootstrap/mpi_look.h"

#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <sched.h>
#include <string>

#include <gtest/gtest.h>
#include <mpi.h>

#include "horon/core/base/config.h"
#include "horon/core/bootstrap/mpi_library.h"
#include "horon/core/transport/mpi_transport.h"
#include "horon/tests/support/mpi_main.h"

namespace {

std::atomic<int> yields{0};

}  // namespace

// Replaces the function of libc, for all libraries of this process.
extern "C" int sched_yield() noexcept {
  ++yields;
  return 0;
}

namespace horon::core {
namespace {

constexpr int kLooks = 100;

int yields_of_looks() {
  yields = 0;
  for (int i = 0; i < kLooks; ++i) {
    int found = 0;
    MPI_Iprobe(MPI_ANY_SOURCE, 0, MPI_COMM_SELF, &found, MPI_STATUS_IGNORE);
    EXPECT_EQ(found, 0);
  }
  return yields;
}

// As mpirun_test starts the ranks: for more ranks than cores.
class MpiLookTest : public testing::Test {
 protected:
  void SetUp() override {
    if (MpiLibrary::version().find("Open MPI") == std::string::npos) {
      GTEST_SKIP() << "MPI is another one than Open MPI";
    }
    ASSERT_GT(yields_of_looks(), 0) << "this MPI yields nowhere, or not by libc's function";
  }

  MpiLibrary library_;
};

TEST_F(MpiLookTest, DoesNotYieldAndLetsOthersYieldAfterwards) {
  {
    const MpiLook look;
    EXPECT_EQ(yields_of_looks(), 0);
  }
  EXPECT_GT(yields_of_looks(), 0);
}

// As with srun, which does not tell MPI that there are more ranks than cores.
TEST_F(MpiLookTest, YieldsOnRequestUnlessTheUserHasChosen) {
  const auto set_yield =
      reinterpret_cast<bool (*)(bool)>(::dlsym(RTLD_DEFAULT, "opal_progress_set_yield_when_idle"));
  ASSERT_NE(set_yield, nullptr);
  const std::string chosen = environment_value("OMPI_MCA_mpi_yield_when_idle");
  ASSERT_NE(chosen, "");  // by mpirun_test
  set_yield(false);
  let_mpi_yield();
  EXPECT_EQ(yields_of_looks(), 0);
  ASSERT_EQ(unsetenv("OMPI_MCA_mpi_yield_when_idle"), 0);
  let_mpi_yield();
  EXPECT_GT(yields_of_looks(), 0);
  ASSERT_EQ(setenv("OMPI_MCA_mpi_yield_when_idle", chosen.c_str(), 1), 0);
}

TEST_F(MpiLookTest, TheTransportLooksWithoutAYield) {
  const MpiBootstrap bootstrap(library_);
  MpiTransport transport(bootstrap, {});
  yields = 0;
  for (int i = 0; i < kLooks; ++i) EXPECT_FALSE(transport.receive().has_value());
  EXPECT_EQ(yields, 0);
  MPI_Barrier(bootstrap.communicator());
}

}  // namespace
}  // namespace horon::core

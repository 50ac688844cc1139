// Start, stop and the division of cores, in an MPI that the caller owns: then the session may come
// back.
#include "horon/torch_bindings/session.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <sched.h>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <mpi.h>

#include "horon/core/base/version.h"
#include "horon/ops/session/running_job.h"
#include "horon/tests/support/error_of.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/data/samplers.h"
#include "horon/torch_bindings/gradients/gradient_reducer.h"
#include "horon/torch_bindings/lr/scaling.h"

namespace horon::session_test {
namespace {

using test::error_of;
using testing::Each;
using testing::SizeIs;
using testing::StartsWith;

int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

TEST(Session, KnowsItsPlaceAndComesBack) {
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(is_initialized());
    init();
    init();
    EXPECT_TRUE(is_initialized());
    EXPECT_EQ(rank(), test_rank());
    EXPECT_EQ(size(), test_size());
    EXPECT_EQ(local_size() * cross_size(), size());
    EXPECT_TRUE(device().is_cpu());
    at::Tensor ones = at::ones({3});
    EXPECT_EQ(allreduce_(ones, {.op = ReduceOp::Sum})[0].item<double>(), size());
    shutdown();
    shutdown();
  }
}

TEST(Session, NothingWorksOutside) {
  for (const auto& call : std::vector<std::function<void()>>{
           [] { rank(); }, [] { size(); }, [] { device(); }, [] { barrier(); },
           [] { scale_lr(1.0); }, [] { allreduce(at::ones({2})); },
           [] { broadcast(at::ones({2})); }, [] { allgather(at::ones({2})); },
           [] { DistributedRandomSampler(10); }}) {
    EXPECT_THAT(error_of(call), StartsWith("not initialized"));
  }
  bool worked = false;
  EXPECT_THAT(error_of([&] { on_all_ranks([&] { worked = true; }); }),
              StartsWith("not initialized"));
  EXPECT_FALSE(worked);
}

TEST(Session, MakesProcessSetsAtTheStart) {
  std::vector<int> reversed;
  for (int r = test_size(); r-- > 0;) reversed.push_back(r);
  init({.process_sets = {{0}, reversed}});
  const std::vector<ProcessSet> sets = process_sets();
  ASSERT_EQ(sets.size(), 3U);
  EXPECT_TRUE(sets[0].is_world());
  EXPECT_EQ(sets[1].ranks(), std::vector<int>{0});
  EXPECT_EQ(sets[2].ranks(), sets[0].ranks());
  const at::Tensor sum = allreduce(at::ones({1}), {.op = ReduceOp::Sum, .process_set = sets[2]});
  EXPECT_EQ(sum.item<double>(), test_size());
  shutdown();
}

TEST(Session, ANanIsFoundBeforeItSpreadsIfAskedFor) {
  init({.set = {{"HORON_CHECK_FINITE", "1"}}});
  at::Tensor x = at::ones({4});
  const int guilty = size() - 1;
  if (rank() == guilty) x[2] = std::nan("");
  const std::string error = error_of([&] { allreduce(x, {.name = "loss"}); });
  EXPECT_THAT(error, testing::HasSubstr("\"loss\""));
  EXPECT_THAT(error, testing::HasSubstr("NaN"));
  if (rank() != guilty) {
    EXPECT_THAT(error, testing::HasSubstr("rank " + std::to_string(guilty)));
  }
  EXPECT_EQ(allreduce(at::ones({4}), {.name = "loss"})[0].item<double>(), 1.0);
  shutdown();
}

TEST(Session, AWrongKnobOfOneRankIsTheSameErrorOnAll) {
  const int guilty = test_size() - 1;
  InitOptions options;
  if (test_rank() == guilty) options.set = {{"HORON_BUCKET_BYTES", "many"}};
  const std::string error = error_of([&] { init(options); });
  EXPECT_THAT(error, testing::HasSubstr("HORON_BUCKET_BYTES='many'"));
  if (test_size() > 1) {
    EXPECT_THAT(error, testing::HasSubstr("(on rank " + std::to_string(guilty) + ")"));
  }
  EXPECT_EQ(last_rank(), test_rank());
  EXPECT_FALSE(is_initialized());
}

TEST(Session, HeadersOfAnotherVersionAreRefused) {
  const std::string error = error_of([] { init({}, "0.0.9"); });
  EXPECT_THAT(error, testing::HasSubstr("the headers of Horon 0.0.9"));
  EXPECT_THAT(error, testing::HasSubstr("the library of Horon " + std::string(version())));
  EXPECT_FALSE(is_initialized());
  // A patch leaves the headers as they are.
  init({}, std::string(kHeaderVersion.substr(0, kHeaderVersion.rfind('.'))) + ".999");
  EXPECT_TRUE(is_initialized());
  shutdown();
}

TEST(Session, HandlesEndWithTheSession) {
  init();
  const Handle done = allreduce_async(at::ones({3}), {.op = ReduceOp::Sum});
  barrier();
  Handle lonely;
  if (rank() == 0 && size() > 1) lonely = allreduce_async(at::ones({3}), {.name = "lonely"});
  shutdown();
  EXPECT_EQ(done.wait()[0].item<double>(), test_size());
  if (test_rank() == 0 && test_size() > 1) {
    EXPECT_THAT(error_of([&] { lonely.wait(); }), StartsWith("rank left"));
  }
}

// Ranks may have made different numbers of reducers in another session. In this one their names
// must be alike, or each rank would wait for reducers of other names.
TEST(Session, ReducersAreCountedAnewInEachSession) {
  for (int session = 0; session < 2; ++session) {
    init();
    const at::Tensor w = at::ones({3}).requires_grad_(true);
    const at::Tensor v = at::ones({2}).requires_grad_(true);
    {
      GradientReducer reducer({{"w", w}});
      ASSERT_EQ(reducer.name(), "gradients.0");
      (w * (rank() + 1)).sum().backward();
      EXPECT_TRUE(at::allclose(w.grad(), at::full({3}, (size() + 1) / 2.0)));
      reducer.synchronize();
      (void)join();  // calls are counted anew from here on; the reducer is still in use
      EXPECT_EQ(GradientReducer({{"v", v}}).name(), "gradients.1");
    }
    for (int more = 0; more < rank(); ++more) GradientReducer({{"v", v}});
    shutdown();
  }
}

TEST(Session, ACommunicatorOfTheCaller) {
  MPI_Comm backwards = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, 0, test_size() - test_rank(), &backwards);
  init({.mpi_comm = &backwards});
  EXPECT_EQ(rank(), test_size() - 1 - test_rank());
  EXPECT_EQ(allgather(at::full({1}, double(test_rank())))[0].item<double>(), test_size() - 1);
  shutdown();
  MPI_Comm_free(&backwards);
}

TEST(Threads, AreDividedWhereTheUserHasNotChosen) {
  const int cores = usable_cores();
  unsetenv("OMP_NUM_THREADS");
  unsetenv("MKL_NUM_THREADS");
  at::set_num_threads(cores);
  init();
  const core::CpuShare& share = ops::cpu_share();
  const int shared = share.by_quota ? std::min(share.cores, share.physical) : share.physical;
  EXPECT_EQ(at::get_num_threads(), std::max(1, shared / share.sharers));
  shutdown();
}

TEST(Threads, AreLeftAloneWhereTheUserHas) {
  const int cores = usable_cores();
  setenv("OMP_NUM_THREADS", "1", 1);
  at::set_num_threads(cores);
  init();
  EXPECT_EQ(at::get_num_threads(), cores);
  shutdown();
  unsetenv("OMP_NUM_THREADS");
  at::set_num_threads(cores + 3);
  init();
  EXPECT_EQ(at::get_num_threads(), cores + 3);
  shutdown();
}

TEST(Threads, FollowTheKnob) {
  setenv("OMP_NUM_THREADS", "1", 1);
  init({.set = {{"HORON_THREADS", "5"}}});
  EXPECT_EQ(at::get_num_threads(), 5);
  shutdown();
}

// Where the program has dropped the handle, the background thread lets go of a tensor last. The
// destructor is code of LibTorch and of the program, so it must run on a thread of the program.
TEST(Threads, TensorsDieOnThreadsOfTheProgram) {
  struct Deaths {
    std::mutex mutex;
    std::vector<std::thread::id> threads;
  };
  const auto deaths = std::make_shared<Deaths>();
  constexpr int kTensors = 50;
  init();
  for (int i = 0; i < kTensors; ++i) {
    const auto record = [deaths](void* memory) {
      delete[] static_cast<float*>(memory);
      const std::lock_guard lock(deaths->mutex);
      deaths->threads.push_back(std::this_thread::get_id());
    };
    (void)allreduce_async(at::from_blob(new float[8]{}, {8}, record));
  }
  shutdown();
  const std::lock_guard lock(deaths->mutex);
  EXPECT_THAT(deaths->threads, SizeIs(kTensors));
  EXPECT_THAT(deaths->threads, Each(std::this_thread::get_id()));
}

TEST(Threads, ABadKnobIsAConfigError) {
  EXPECT_THAT(error_of([] {
                init({.set = {{"HORON_THREADS", "-7"}}});
              }),
              StartsWith("configuration"));
  EXPECT_FALSE(is_initialized());
}

TEST(Defaults, ComeFromTheSession) {
  init();
  EXPECT_DOUBLE_EQ(scale_lr(0.5), 0.5 * size());
  EXPECT_DOUBLE_EQ(scale_lr(0.5, ReduceOp::Sum), 0.5);
  // Passes that add up have made the step larger already; passes that are averaged have not.
  EXPECT_DOUBLE_EQ(scale_lr(0.5, {.backward_passes_per_step = 3}), 0.5 * size());
  const GradientReducerOptions averaged{.backward_passes_per_step = 3,
                                        .average_aggregated_gradients = true};
  EXPECT_DOUBLE_EQ(scale_lr(0.5, averaged), 1.5 * size());
  const ProcessSet half = split_process_set(rank() == 0 ? 0 : 1);
  EXPECT_DOUBLE_EQ(scale_lr(0.5, {.process_set = half}), 0.5 * half.size());
  EXPECT_DOUBLE_EQ(scale_lr(0.5, {.op = ReduceOp::Sum, .process_set = half}), 0.5);
  DistributedSequentialSampler sequential(101);
  const auto mine = sequential.next(1000);
  ASSERT_TRUE(mine.has_value());
  std::vector<int64_t> indices(mine->begin(), mine->end());
  const at::Tensor all = allgather(at::tensor(indices, at::kLong));
  EXPECT_TRUE(at::equal(all, at::arange(101, at::kLong)));
  DistributedRandomSampler random(101, {.seed = 3});
  const auto drawn = random.next(1000);
  indices.assign(drawn->begin(), drawn->end());
  const at::Tensor sorted = std::get<0>(allgather(at::tensor(indices, at::kLong)).sort());
  EXPECT_EQ(sorted.numel(), (101 + size() - 1) / size() * size());
  EXPECT_EQ(std::get<0>(at::_unique(sorted)).numel(), 101);
  shutdown();
}

}  // namespace
}  // namespace horon::session_test

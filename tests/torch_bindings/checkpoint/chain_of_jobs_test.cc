// Training that goes on in other processes, on as many ranks and on others. Each test is a step of
// a chain of jobs, which the script chain_of_jobs runs; by themselves they are skipped.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <gmock/gmock.h>

#include "horon/tests/torch_bindings/checkpoint/checkpoint_training.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/bytes.h"

namespace horon::chain_of_jobs_test {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::error_of;
using testing_support::kSamples;
using testing_support::Training;

class ChainOfJobs : public testing::Test {
 protected:
  void SetUp() override {
    const char* folder = std::getenv("CHAIN_OF_JOBS_FOLDER");
    if (folder == nullptr) GTEST_SKIP() << "a step of a chain of jobs";
    folder_ = folder;
  }
  std::string own_file() const { return folder_ + "/want." + std::to_string(rank()); }
  std::string folder_;
};

TEST_F(ChainOfJobs, Stops) {
  if (rank() == 0) fs::remove_all(folder_);
  barrier();
  Training first(folder_);
  first.run(5);
  first.checkpoints.save(
      5, {.metric = 0.5,
          .values = {{"note", "chain"},
                     {"rate", 0.25},
                     {"losses", std::vector<double>{0.5, 0.25}},
                     {"counts", c10::ivalue::Tuple::create({std::vector<int64_t>{1, 2}})},
                     {"tensors", std::vector<at::Tensor>{at::ones({2})}}}});
  first.checkpoints.wait();
  std::ofstream(folder_ + "/drawn." + std::to_string(rank()))
      << testing::PrintToString(first.drawn);
  first.run(5);
  std::ofstream(own_file(), std::ios::binary) << first.bits();
}

TEST_F(ChainOfJobs, GoesOn) {
  Training second(folder_);
  ASSERT_EQ(second.checkpoints.load_latest()->step, 5);
  second.run(5);
  std::ifstream in(own_file(), std::ios::binary);
  EXPECT_EQ(second.bits(), std::string(std::istreambuf_iterator<char>(in), {}));
}

// On another number of ranks: the model and all that is alike is the same, the rest of the epoch is
// shared out anew, and the random numbers of the ranks are new ones.
TEST_F(ChainOfJobs, GoesOnWithOtherRanks) {
  Training other(folder_);
  const auto found = other.checkpoints.load_latest();
  ASSERT_EQ(found->step, 5);
  EXPECT_EQ(found->ranks, 2);
  EXPECT_EQ(other.decay.steps, 5);
  std::vector<int64_t> all;
  if (rank() == 0) {
    for (const char* name : {"/drawn.0", "/drawn.1"}) {
      std::ifstream in(folder_ + name);
      char comma = 0;
      for (int64_t number = 0; in >> comma >> number;) all.push_back(number);
    }
    EXPECT_EQ(all.size(), 30u);
  }
  while (const auto indices = other.sampler.next(4))
    all.insert(all.end(), indices->begin(), indices->end());
  std::string bytes(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(int64_t));
  std::vector<int64_t> gathered;
  for (const std::string& part : allgather_bytes(bytes)) {
    const auto* numbers = reinterpret_cast<const int64_t*>(part.data());
    gathered.insert(gathered.end(), numbers, numbers + part.size() / sizeof(int64_t));
  }
  std::sort(gathered.begin(), gathered.end());
  std::vector<int64_t> each_once(kSamples);
  std::iota(each_once.begin(), each_once.end(), int64_t{0});
  EXPECT_EQ(gathered, each_once);
  const std::vector<std::string> random =
      allgather_bytes(std::to_string(torch::rand({1}).item<double>()));
  for (size_t r = 1; r < random.size(); ++r) EXPECT_NE(random[0], random[r]);
  other.sampler.reset();
  other.run(3);

  testing_support::Decay alone;
  Checkpoints checkpoints(folder_);
  checkpoints.add_of_rank("sampler", alone);
  EXPECT_THAT(error_of([&] { checkpoints.load_latest(); }),
              AllOf(HasSubstr("was saved by 2 ranks"), HasSubstr("no load_resharded()")));
}

}  // namespace
}  // namespace horon::chain_of_jobs_test

// HORON_AUTOTUNE: the ranks change the sizes of their buckets together, while training goes on.
// What buckets cost is planted here, in the clock by which steps are timed, so that the best sizes
// are known.
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <unistd.h>
#include <vector>

#include "horon/ops/session/session.h"
#include "horon/tests/support/mpi_main.h"
#include "horon/tests/torch_bindings/gradients/gradient_support.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/gradients/bucket_tuner.h"

namespace horon {
namespace {

using testing::Each;
using testing::HasSubstr;
using namespace testing_support;

constexpr int kTunedParameters = 12;
constexpr int64_t kElementsOfEach = 16 << 10;  // of each: 64 KiB

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

int lines_with(const std::string& text, const std::string& words) {
  int count = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) count += line.find(words) != line.npos ? 1 : 0;
  return count;
}

// What a step costs, on the clock of the tuner.
double clock_s = 0;

class Autotune : public testing::Test {
 protected:
  Autotune()
      : path_(testing::TempDir() + "autotune." + std::to_string(::getpid()) + "." +
              testing::UnitTest::GetInstance()->current_test_info()->name()) {}
  ~Autotune() override {
    for (const char* const suffix : {".csv", ".warm"}) (void)std::remove((path_ + suffix).c_str());
  }

  // A session with these knobs, in the place of the one that all tests have.
  void start(std::map<std::string, std::string> knobs) {
    knobs.insert({{"HORON_AUTOTUNE", "1"},
                  {"HORON_AUTOTUNE_STEPS", "2"},
                  {"HORON_AUTOTUNE_SAMPLES", "6"},
                  {"HORON_AUTOTUNE_LOG", path_ + ".csv"},
                  {"HORON_AUTOTUNE_WARM_START", path_ + ".warm"}});
    restarted_ = true;
    shutdown();
    torch_detail::set_tuning_clock([] { return clock_s; });
    init({.set = std::move(knobs)});
  }
  void TearDown() override {
    if (!restarted_) return;
    shutdown();
    torch_detail::set_tuning_clock(nullptr);
    init();
  }
  std::string table() const { return content_of(path_ + ".csv"); }
  std::string kept() const { return content_of(path_ + ".warm"); }

  const std::string path_;

 private:
  bool restarted_ = false;
};

// Trains parameters of known gradients. A step takes so long for each bucket, with some noise.
class CostlyTraining {
 public:
  explicit CostlyTraining(double of_a_bucket_s, GradientReducerOptions options = {})
      : of_a_bucket_s_(of_a_bucket_s), reducer_(parameters_, options) {}

  // `looks`: asks whether all ranks have as many buckets, which takes a collective.
  void step(bool looks = true) {
    for (const at::Tensor& w : parameters_) w.mutable_grad().reset();
    at::Tensor loss = at::zeros({});
    for (const at::Tensor& w : parameters_) loss = loss + weighted(w, rank() + 1);
    loss.backward();
    if (looks) {
      const std::vector<int64_t> of_ranks = allgather_object(buckets());
      EXPECT_THAT(of_ranks, Each(of_ranks.front()));  // all change together
    }
    clock_s += of_a_bucket_s_ * static_cast<double>(buckets()) + noise_(random_);
    reducer_.synchronize();
  }
  // Looks at the gradients now and then.
  void steps(int count) {
    for (int i = 0; i < count; ++i) {
      step();
      if (i % 16 > 0) continue;
      for (const at::Tensor& w : parameters_) expect_gradient(w, mean_of_ranks());
    }
  }
  // Until the first rank has written down a result.
  void steps_until_kept(const std::string& path) {
    for (int i = 0; i < 100; ++i) {
      steps(16);
      const bool kept =
          rank() != 0 || content_of(path).find(reducer_.name() + "\t") != std::string::npos;
      if (broadcast_object(static_cast<int64_t>(kept)) != 0) return steps(16);
    }
    ADD_FAILURE() << "autotuning has not ended";
  }
  int64_t buckets() const { return reducer_.statistics().buckets; }
  GradientReducer& reducer() { return reducer_; }

 private:
  static std::vector<at::Tensor> make_parameters() {
    std::vector<at::Tensor> all;
    for (int i = 0; i < kTunedParameters; ++i) all.push_back(leaf({kElementsOfEach}));
    return all;
  }

  const std::vector<at::Tensor> parameters_ = make_parameters();
  const double of_a_bucket_s_;
  std::mt19937 random_{1};
  std::uniform_real_distribution<double> noise_{0.001, 0.0012};
  GradientReducer reducer_;
};

constexpr double kCostly = 0.001, kNothing = 0;

// One bucket for each parameter.
const std::map<std::string, std::string> kManyBuckets = {{"HORON_BUCKET_BYTES", "1KiB"},
                                                         {"HORON_FIRST_BUCKET_BYTES", "1KiB"}};
const std::map<std::string, std::string> kOneBucket = {{"HORON_BUCKET_BYTES", "64MiB"},
                                                       {"HORON_FIRST_BUCKET_BYTES", "16MiB"}};

TEST_F(Autotune, ASlowStartIsLeftAndNothingIsPaidAfterwards) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kCostly);
    training.steps(1);
    EXPECT_EQ(training.buckets(), kTunedParameters);
    training.steps_until_kept(path_ + ".warm");
    EXPECT_LE(training.buckets(), 3);
    // What was thawed in the search must come more often in a row before it is frozen again.
    for (int i = 0; i < 600; ++i) training.step(/*looks=*/false);
    barrier();
    const Statistics before = statistics();
    for (int i = 0; i < 3; ++i) training.step(/*looks=*/false);
    const Statistics after = statistics();
    EXPECT_EQ(after.frozen_starts - before.frozen_starts,
              3 * static_cast<uint64_t>(training.buckets()));
    EXPECT_EQ(after.negotiated_starts, before.negotiated_starts);
    EXPECT_EQ(after.control_messages_sent, before.control_messages_sent);
    barrier();
  }
  if (rank() == 0) {
    const std::string table = this->table();
    EXPECT_EQ(table.find("reducer,elapsed_s,stage,bucket_bytes,first_bucket_bytes,"), 0U) << table;
    EXPECT_EQ(lines_with(table, ",search,1024,1024,12,"), 1) << table;
    EXPECT_EQ(lines_with(table, ",comparison,1024,1024,12,"), 6) << table;
    EXPECT_EQ(lines_with(table, ",comparison,"), 12) << table;
    EXPECT_EQ(lines_with(table, ",kept,"), 1) << table;
    EXPECT_THAT(kept(), HasSubstr("12 gradients of 196608 elements (Average), " +
                                  std::to_string(size()) + " ranks on 1 host\tbucket_bytes="));
  }
}

TEST_F(Autotune, WhereNothingIsFasterItEndsAtTheStart) {
  if (test_size() == 1) return;
  start(kOneBucket);
  {
    CostlyTraining training(kCostly);
    training.steps_until_kept(path_ + ".warm");
    EXPECT_EQ(training.buckets(), 1);
  }
  if (rank() == 0) {
    EXPECT_EQ(lines_with(table(), ",kept,67108864,16777216,1,"), 1) << table();
    EXPECT_THAT(kept(), HasSubstr("bucket_bytes=67108864 first_bucket_bytes=16777216"));
  }
}

// The second run compares what the first has found with its start, and does not search.
TEST_F(Autotune, TheNextRunBeginsWithWhatWasFound) {
  if (test_size() == 1) return;
  std::string found;
  for (int run = 0; run < 2; ++run) {
    start(kManyBuckets);
    {
      CostlyTraining training(kCostly, {.name = "model"});
      if (run == 0) training.steps_until_kept(path_ + ".warm");
      if (run == 1) training.steps(240);
      EXPECT_LE(training.buckets(), 3);
    }
    if (rank() == 0 && run == 0) found = kept();
    if (rank() == 0 && run == 1) {
      EXPECT_EQ(kept(), found);
      // Of this process, which has written the searches of the first run too.
      EXPECT_EQ(lines_with(table(), ",comparison,"), 24) << table();
      EXPECT_LE(lines_with(table(), ",search,"), 6) << table();
    }
  }
}

// One warning, and a search as if there were no file.
TEST_F(Autotune, AFileThatDoesNotFitIsNamedOnce) {
  if (test_size() == 1) return;
  const std::string title = "# Horon autotuning 1: reducer, facts, settings\n";
  const std::map<std::string, std::string> files = {
      {title + "model\t12 gradients of 196608 elements (Average), 7 ranks on 1 host\t" +
           "bucket_bytes=65536 first_bucket_bytes=65536\n",
       ", 7 ranks on 1 host, and this is 12 gradients"},
      {"epoch,loss\n", "is no file of Horon's autotuning"}};
  for (const auto& [text, warning] : files) {
    if (test_rank() == 0) std::ofstream(path_ + ".warm") << text;
    start(kManyBuckets);
    if (rank() == 0) testing::internal::CaptureStderr();
    {
      CostlyTraining training(kNothing, {.name = "model"});
      training.steps(40);
    }
    if (rank() == 0) {
      const std::string log = testing::internal::GetCapturedStderr();
      EXPECT_EQ(lines_with(log, "warning: "), 1) << log;
      EXPECT_EQ(lines_with(log, warning), 1) << log;
      EXPECT_EQ(lines_with(log, path_ + ".warm"), 1) << log;
      EXPECT_GE(lines_with(log, "autotune \"model\": search 1: buckets of 1 KiB"), 1) << log;
      EXPECT_EQ(kept(), text);  // until there is something better to say
    }
  }
}

// A rank that has joined would come back with old buckets, so nothing changes meanwhile.
TEST_F(Autotune, WaitsForRanksThatHaveJoined) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < kTunedParameters; ++i) parameters.push_back(leaf({kElementsOfEach}));
    GradientReducer reducer(parameters);
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        for (const at::Tensor& w : parameters) w.mutable_grad().reset();
        at::Tensor loss = at::zeros({});
        for (const at::Tensor& w : parameters) loss = loss + weighted(w, 1);
        loss.backward();
        clock_s += 0.01;
        reducer.synchronize();
        for (const at::Tensor& w : parameters) expect_gradient(w, 1);
      }
    };
    for (int epoch = 0; epoch < 4; ++epoch) {
      steps(20);
      if (rank() != size() - 1) steps(40 + 7 * epoch);
      (void)join();
      const std::vector<int64_t> buckets = allgather_object(reducer.statistics().buckets);
      EXPECT_THAT(buckets, Each(buckets.front()));
    }
  }
}

TEST_F(Autotune, SeveralReducersTakeTurns) {
  if (test_size() == 1) return;
  std::map<std::string, std::string> knobs = kManyBuckets;
  knobs["HORON_AUTOTUNE_STEPS"] = "6";  // one of them has the other reducer's steps in its time
  start(knobs);
  {
    CostlyTraining a(kCostly, {.name = "a"});
    CostlyTraining b(kCostly, {.name = "b"});
    for (int i = 0; i < 60; ++i) {
      a.steps(16);
      b.steps(16);
      const bool both = rank() != 0 || table().find("\"b\",") != std::string::npos;
      if (broadcast_object(static_cast<int64_t>(both)) != 0) break;
    }
    EXPECT_LE(a.buckets(), 3);
  }
  if (rank() != 0) return;
  const std::string rows = table();
  EXPECT_EQ(lines_with(rows.substr(0, rows.find("\"b\",")), ",kept,"), 1) << rows;
}

// What a program changes meanwhile does not divide the ranks.
TEST_F(Autotune, GoesOnWhenTheProgramChangesTheReducer) {
  if (test_size() == 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kNothing, {.wait_in = WaitIn::Step});
    training.steps(35);
    training.reducer().set_backward_passes_per_step(2);
    for (int i = 0; i < 3; ++i) training.step();
    training.reducer().set_backward_passes_per_step(1);
    training.steps(35);
    const at::Tensor more = leaf({kElementsOfEach});
    training.reducer().add_parameters({{"more", more}});
    training.steps(35);
    training.reducer().before_bucket([](const BucketView&) {});
    training.steps(20);
    EXPECT_EQ(training.buckets(), kTunedParameters + 1);  // gave up
  }
}

TEST_F(Autotune, OneRankHasNothingToTune) {
  if (test_size() > 1) return;
  start(kManyBuckets);
  {
    CostlyTraining training(kNothing);
    training.steps(40);
  }
  EXPECT_EQ(table() + kept(), "");
}

}  // namespace
}  // namespace horon

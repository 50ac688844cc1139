// The values and times of all ranks as one record.
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>
#include <stdexcept>
#include <unistd.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include "horon/ops/session/session.h"
#include "horon/tests/torch_bindings/session_environment.h"
#include "horon/torch_bindings/collectives/objects.h"
#include "horon/torch_bindings/guards/rank_zero.h"
#include "horon/torch_bindings/logging/event_file.h"
#include "horon/torch_bindings/logging/logger.h"
#include "horon/torch_bindings/logging/step_timer.h"
#include "horon/torch_bindings/logging/text_sinks.h"
#include "horon/torch_bindings/metrics/classification.h"
#include "horon/torch_bindings/metrics/mean.h"

namespace horon::logging_test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::StartsWith;
using testing_support::error_of;

const double kNan = std::numeric_limits<double>::quiet_NaN();

uint64_t starts() {
  const Statistics now = statistics();
  return now.negotiated_starts + now.frozen_starts;
}

// Keeps what it is given.
class KeepingSink : public LogSink {
 public:
  explicit KeepingSink(std::vector<LogRecord>& kept) : kept_(kept) {}
  void write(const LogRecord& record) override { kept_.push_back(record); }

 private:
  std::vector<LogRecord>& kept_;
};

std::map<std::string, double> by_name(const LogRecord& record) {
  return {record.values.begin(), record.values.end()};
}

TEST(Logger, ReducesByNameInOneCollective) {
  std::vector<LogRecord> kept;
  Logger logger;
  logger.add(std::make_unique<KeepingSink>(kept));
  // Rank r has r + 1 batches, the b-th of b + 1 samples with the mean r * 10 + b.
  double sum = 0, samples = 0;
  for (int r = 0; r < size(); ++r) {
    for (int b = 0; b <= r; ++b) {
      sum += (b + 1) * (r * 10.0 + b);
      samples += b + 1;
    }
  }
  for (int b = 0; b <= rank(); ++b) {
    const double loss = rank() * 10 + b;
    logger.log("loss", loss, {.weight = b + 1.0});
    logger.log("as a tensor", at::full({1}, loss, at::kFloat), {.weight = b + 1.0});
    logger.log("samples", b + 1, {.reduce = Reduce::Sum});
    logger.log("least", loss, {.reduce = Reduce::Min});
    logger.log("most", at::full({}, rank(), at::kInt), {.reduce = Reduce::Max});
    logger.log("alike", rank() + b, {.reduce = Reduce::First});
  }
  barrier();
  const uint64_t before = starts();
  const LogRecord record = logger.flush(7);
  EXPECT_EQ(starts() - before, 1U);
  EXPECT_EQ(record.step, 7);
  EXPECT_THAT(record.values,
              ElementsAre(Pair("loss", testing::DoubleNear(sum / samples, 1e-12)),
                          Pair("as a tensor", record.values[0].second), Pair("samples", samples),
                          Pair("least", 0), Pair("most", size() - 1), Pair("alike", 0)));
  EXPECT_EQ(kept.size(), rank() == 0 ? 1U : 0U);
  EXPECT_THAT(logger.flush(8).values, IsEmpty());
}

TEST(Logger, RanksMayHaveLoggedDifferentNamesOrNothing) {
  Logger logger;
  if (rank() == size() - 1) logger.log("last", 3);
  if (rank() == 0) logger.log("first", 4, {.weight = 2});
  logger.log("no samples", kNan, {.weight = 0});
  logger.log("least", rank() == 0 ? kNan : 1.0, {.reduce = Reduce::Min});
  logger.log("most", rank() == size() - 1 ? kNan : 1.0, {.reduce = Reduce::Max});
  const std::map<std::string, double> values = by_name(logger.flush(1));
  EXPECT_EQ(values.at("last"), 3);
  EXPECT_EQ(values.at("first"), 4);
  EXPECT_FALSE(values.contains("no samples"));
  EXPECT_TRUE(std::isnan(values.at("least")));  // of whichever rank it is
  EXPECT_TRUE(std::isnan(values.at("most")));
}

TEST(Logger, TheTimeOfARecordIsThatOfTheRankThatWritesIt) {
  std::vector<LogRecord> kept;
  Logger logger;
  logger.add(std::make_unique<KeepingSink>(kept));
  const LogRecord record = logger.flush(1);
  EXPECT_GT(record.time, 1.7e9);
  EXPECT_THAT(allgather_object(record.time), testing::Each(record.time));
  if (rank() == 0) {
    EXPECT_EQ(kept.front().time, record.time);
  }
}

TEST(Logger, DictionariesAndMetrics) {
  Logger logger;
  logger.log_dict({{"a", 1.0}, {"b", rank()}}, {.reduce = Reduce::Sum});
  logger.log_dict({{"accuracy", at::full({}, 0.75, at::kDouble)}});
  metrics::Mean mean;
  logger.log("mean", mean.forward(at::full({}, rank()), rank()));
  const std::map<std::string, double> values = by_name(logger.flush(1));
  EXPECT_EQ(values.at("a"), size());
  EXPECT_EQ(values.at("b"), size() * (size() - 1) / 2);
  EXPECT_EQ(values.at("accuracy"), 0.75);
  double sum = 0, weights = 0;
  for (int r = 0; r < size(); ++r) {
    sum += r * r;
    weights += r;
  }
  EXPECT_EQ(values.contains("mean"), weights > 0);
  if (weights > 0) {
    EXPECT_DOUBLE_EQ(values.at("mean"), sum / weights);
  }
  metrics::FScore f1({.average = metrics::Average::Macro});
  const metrics::BatchValue batch = f1.forward(at::tensor({0, 1}), at::tensor({1, 1}));
  EXPECT_THAT(error_of([&] { logger.log("f1", batch); }),
              AllOf(StartsWith("invalid argument: log(\"f1\")"), HasSubstr("compute()")));
}

TEST(Logger, WrongUse) {
  Logger logger({.name = "wrong"});
  logger.log("x", 1);
  EXPECT_THAT(error_of([&] { logger.log("x", 1, {.reduce = Reduce::Sum}); }),
              HasSubstr("another reduction"));
  EXPECT_THAT(error_of([&] { logger.log("y", 1, {.weight = kNan}); }), HasSubstr("weight is nan"));
  EXPECT_THAT(error_of([&] { logger.log("y", at::zeros({2})); }), HasSubstr("Float [2]"));
  EXPECT_THAT(error_of([&] { logger.log("y", at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(error_of([&] { logger.log("step", 1); }), HasSubstr("which records have"));
  if (size() == 1) return;
  EXPECT_THAT(
      error_of([&] { logger.flush(rank() == 0 ? 1 : 2); }),
      StartsWith("mismatch: \"wrong\": the ranks flush different steps: 1 on rank 0, 2 on"));
  logger.log("z", 1, {.reduce = rank() == 0 ? Reduce::Sum : Reduce::Max});
  EXPECT_THAT(error_of([&] { logger.flush(3); }),
              AllOf(StartsWith("mismatch: \"wrong\": the ranks reduce \"z\" in different ways"),
                    HasSubstr("Sum on rank 0")));
  EXPECT_EQ(by_name(logger.flush(4)).size(), 0U);
}

TEST(Logger, ASinkThatCanNotWriteIsAnErrorOfTheNextFlushOnAllRanks) {
  std::vector<LogRecord> kept;
  Logger logger({.name = "sinks"});
  logger.add(std::make_unique<JsonlSink>("/no/such/folder/log.jsonl"));
  logger.add(std::make_unique<KeepingSink>(kept));
  logger.log("x", 1);
  logger.flush(1);
  EXPECT_THAT(error_of([&] { logger.flush(2); }),
              AllOf(StartsWith("failed: \"sinks\": on rank 0: can't write /no/such/folder"),
                    HasSubstr("No such file")));
  for (int step = 3; step <= 6; ++step) {
    logger.log("x", step, {.reduce = Reduce::Sum});
    EXPECT_THAT(error_of([&] { logger.flush(step); }), StartsWith("failed"));
  }
  ASSERT_EQ(kept.size(), rank() == 0 ? 6U : 0U);  // the other sink has all
  for (size_t i = 2; i < kept.size(); ++i) {
    const double step = static_cast<double>(i) + 1;
    EXPECT_THAT(kept[i].values, ElementsAre(Pair("x", step * size())));
  }
  // If the flush itself fails too, the older error is still told later.
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { logger.flush(7 + rank()); }), StartsWith("mismatch"));
    EXPECT_THAT(error_of([&] { logger.flush(8); }), StartsWith("failed"));
  }
  testing::internal::CaptureStderr();
  {
    Logger ends({.name = "ends"});
    ends.add(std::make_unique<JsonlSink>("/no/such/folder/last.jsonl"));
    ends.log("x", 1);
    ends.flush(1);
  }
  const std::string said = testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find("can't write /no/such/folder/last.jsonl") != std::string::npos, rank() == 0);
}

// Only rank 0 writes. What was meant for a file of another rank would be lost in silence.
TEST(Logger, ASinkForAPathOfAnotherRankIsAnErrorOnAllRanks) {
  const std::string folder = broadcast_object(
      (std::filesystem::temp_directory_path() / ("log_" + std::to_string(getpid()))).string());
  rank_zero_only([&] { std::filesystem::create_directory(folder); });
  const auto sink_for = [](const std::string& path) { return std::make_unique<JsonlSink>(path); };
  const auto lost = [&](const std::string& has) {
    return AllOf(
        StartsWith("mismatch: \"log\": only rank 0 writes the log, but it has no sink for \"" +
                   folder + "/1.jsonl\" on rank 1"),
        HasSubstr("; it has " + has + ". Give all ranks the same paths, or sinks to rank "));
  };
  Logger logger({.name = "log"});
  logger.add(sink_for(folder + "/" + std::to_string(rank()) + ".jsonl"));
  logger.add(std::make_unique<ConsoleSink>());
  logger.log("x", 1, {.reduce = Reduce::Sum});
  if (size() > 1) {
    for (int again = 0; again < 2; ++again) {
      EXPECT_THAT(error_of([&] { logger.flush(1); }), lost("\"" + folder + "/0.jsonl\" on rank 0"));
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder));
  }
  // The same path, written in another way; one that is added later; none but on rank 0.
  Logger same({.name = "log"});
  same.add(sink_for(folder + (rank() == 0 ? "/all.jsonl" : "/./all.jsonl")));
  if (rank() == 0) same.add(std::make_unique<CsvSink>(folder + "/all.csv"));
  same.flush(1);
  same.add(sink_for(folder + "/more.jsonl"));
  same.flush(2);
  if (rank() == 1) same.add(sink_for(folder + "/1.jsonl"));
  if (size() > 1) {
    EXPECT_THAT(error_of([&] { same.flush(3); }), StartsWith("mismatch: \"log\": only rank 0"));
    Logger none({.name = "log"});
    if (rank() == 1) none.add(std::make_unique<TensorBoardSink>(folder + "/1.jsonl"));
    EXPECT_THAT(error_of([&] { none.flush(1); }), lost("none"));
  }
  barrier();
  rank_zero_only([&] { std::filesystem::remove_all(folder); });
}

// What could not be written, or not be put together, is in the records that come later.
TEST(Logger, AFlushThatFailsLosesNoValues) {
  // Each number is that of a write() that fails.
  class FailingSink : public LogSink {
   public:
    FailingSink(std::set<int> failing, std::vector<int64_t>& steps)
        : failing_(std::move(failing)), steps_(steps) {}
    void write(const LogRecord& record) override {
      if (failing_.contains(++calls_)) throw std::runtime_error("the disk is full");
      steps_.push_back(record.step);
    }

   private:
    const std::set<int> failing_;
    int calls_ = 0;
    std::vector<int64_t>& steps_;
  };
  std::vector<int64_t> once, twice;
  std::vector<LogRecord> kept;
  Logger logger({.name = "kept"});
  logger.add(std::make_unique<FailingSink>(std::set{2}, once));
  logger.add(std::make_unique<FailingSink>(std::set{1, 2}, twice));  // step 1, and step 1 again
  logger.add(std::make_unique<KeepingSink>(kept));
  logger.flush(1);
  for (int step = 2; step <= 3; ++step) {
    EXPECT_THAT(error_of([&] { logger.flush(step); }), HasSubstr("the disk is full"));
  }
  logger.flush(4);
  if (rank() == 0) {
    EXPECT_THAT(once, ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(twice, ElementsAre(2, 3, 4));
  }
  if (size() == 1) return;
  logger.log("sum", 1, {.reduce = Reduce::Sum});
  EXPECT_THAT(error_of([&] { logger.flush(5 + rank()); }), StartsWith("mismatch"));
  logger.log("sum", 1, {.reduce = Reduce::Sum});
  logger.log("z", 1, {.reduce = rank() == 0 ? Reduce::Sum : Reduce::Max});
  EXPECT_THAT(error_of([&] { logger.flush(5); }), StartsWith("mismatch"));
  if (rank() == 0) {
    EXPECT_EQ(kept.back().step, 5);
    EXPECT_THAT(kept.back().values, ElementsAre(Pair("sum", 2.0 * size())));
  }
  EXPECT_THAT(logger.flush(6).values, IsEmpty());
}

TEST(Logger, OfProcessSets) {
  if (size() < 3) GTEST_SKIP() << "needs three ranks";
  const ProcessSet set = add_process_set({1, 2});
  if (set.includes_me()) {
    std::vector<LogRecord> kept;
    Logger logger({.process_set = set});
    logger.add(std::make_unique<KeepingSink>(kept));
    logger.log("rank", rank());
    EXPECT_EQ(logger.flush(1).values.front().second, 1.5);
    EXPECT_EQ(kept.size(), rank() == 1 ? 1U : 0U);
  }
  remove_process_set(set);
}

// A clock and a wait counter that the test moves.
struct FakeTime {
  double now = 100, waited = 5;

  StepTimerOptions options() {
    return {.name = "times",
            .exposed_wait_seconds = [this] { return waited; },
            .clock = [this] { return now; }};
  }
};

TEST(StepTimer, DividesStepsAndNamesTheSlowRank) {
  FakeTime time;
  StepTimer timer(time.options());
  const auto spend = [&](Phase phase, double seconds, double waiting = 0) {
    const auto scope = timer.time(phase);
    time.now += seconds + waiting;
    time.waited += waiting;
  };
  const bool slow = rank() == size() - 1 && size() > 1;
  for (int step = 0; step < 2; ++step) {
    spend(Phase::Data, slow ? 0.5 : 0.25);
    spend(Phase::Forward, 1);
    spend(Phase::Backward, 2, slow ? 0 : 0.25);
    spend(Phase::Optimizer, 0.5);
    time.now += 0.125;
    timer.end_step();
  }
  barrier();
  const uint64_t before = starts();
  const StepTimes times = timer.gather();
  EXPECT_EQ(starts() - before, 1U);
  ASSERT_EQ(times.ranks.size(), static_cast<size_t>(size()));
  EXPECT_THAT(times.ranks.front().mean, ElementsAre(0.25, 1, 2, 0.25, 0.5, 0.125));
  EXPECT_DOUBLE_EQ(times.step(), 4.125);
  if (size() == 1) {
    EXPECT_FALSE(times.straggler.has_value());
    EXPECT_EQ(times.text(),
              "2 steps of 4125.0 ms: data 250.0, forward 1000.0, backward 2000.0, "
              "communication 250.0, optimizer 500.0, other 125.0");
  } else {
    ASSERT_TRUE(times.straggler.has_value());
    EXPECT_EQ(times.straggler->rank, size() - 1);
    EXPECT_EQ(times.straggler->phase, Phase::Data);
    EXPECT_THAT(times.text(), HasSubstr("is slow: 250.0 ms behind the median rank, 250.0 of it in "
                                        "data"));
  }
  EXPECT_EQ(timer.gather().text(), "no steps");
}

TEST(StepTimer, ScopesThatWouldCountTwiceAreRefused) {
  FakeTime time;
  StepTimer timer(time.options());
  {
    const auto scope = timer.time(Phase::Data);
    EXPECT_THAT(error_of([&] { (void)timer.time(Phase::Forward); }),
                HasSubstr("time() was called within the scope that times data"));
    EXPECT_THAT(error_of([&] { timer.end_step(); }),
                HasSubstr("end_step() was called within the scope"));
    time.now += 1;
  }
  { const auto scope = timer.time(Phase::Forward); }
  timer.end_step();
  EXPECT_THAT(timer.gather().mean, ElementsAre(1, 0, 0, 0, 0, 0));
}

TEST(StepTimer, SmallDifferencesNameNobodyAndRanksWithoutStepsDoNotCount) {
  const PhaseSeconds usual{1, 1, 1, 0, 1, 0}, later{1, 1, 1.1, 0, 1, 0};
  const StepTimes times =
      torch_detail::summarize({{0, 3, usual}, {1, 1, usual}, {2, 4, later}}, 0.05);
  EXPECT_FALSE(times.straggler.has_value());
  EXPECT_DOUBLE_EQ(times.mean[2], 1.05);  // over all steps
  EXPECT_TRUE(torch_detail::summarize({{0, 3, usual}, {2, 4, later}}, 0.01).straggler.has_value());
  FakeTime time;
  StepTimer timer(time.options());
  if (rank() == 0) timer.end_step();
  EXPECT_EQ(timer.gather().ranks.size(), 1U);
}

// The call is refused because the other ranks would wait; afterwards the times are still there.
TEST(StepTimer, ACallThatIsRefusedLeavesTheTimes) {
  FakeTime time;
  StepTimer timer(time.options());
  time.now += 1;
  timer.end_step();
  rank_zero_only([&] {
    EXPECT_THAT(error_of([&] { (void)timer.gather(); }), HasSubstr("code that rank 0 runs alone"));
  });
  const StepTimes times = timer.gather();
  EXPECT_EQ(times.ranks.size(), static_cast<size_t>(size()));
  EXPECT_THAT(times.mean, ElementsAre(0, 0, 0, 0, 0, 1));
}

}  // namespace
}  // namespace horon::logging_test

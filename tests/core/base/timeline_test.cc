#include "horon/core/base/timeline.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "horon/core/base/error.h"
#include "horon/tests/support/grouping_locale.h"

namespace horon::core {
namespace {

using Json = nlohmann::json;
using namespace std::chrono_literals;

class TimelineTest : public ::testing::Test {
 protected:
  TimelineTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) / "horon_timeline_test_XXXXXX";
    std::string name = folder_.string();
    folder_ = mkdtemp(name.data());
  }
  ~TimelineTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return (folder_ / name).string(); }

  // Throws if the file is no valid JSON.
  Json read(const std::string& name) const { return Json::parse(std::ifstream(path(name))); }

  std::string text_of(const std::string& name) const {
    std::ifstream file(path(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static std::vector<Json> bars(const Json& trace) {
    std::vector<Json> found;
    for (const Json& event : trace.at("traceEvents")) {
      if (event.at("ph") == "X") found.push_back(event);
    }
    return found;
  }

  std::filesystem::path folder_;
};

TEST_F(TimelineTest, NamesTheFileByRank) {
  Timeline::open(path("a"), 0, 2);
  Timeline::open(path("b.json"), 1, 2);
  Timeline::open(path("c-{rank}-x"), 12, 20);
  std::filesystem::create_directory(path("folder"));
  Timeline::open(path("folder"), 0, 2);
  Timeline::open(path("folder/"), 1, 2);
  for (const char* name : {"a.rank0.json", "b.rank1.json", "c-12-x", "folder/timeline.rank0.json",
                           "folder/timeline.rank1.json"}) {
    EXPECT_NO_THROW(read(name)) << name;
  }
  const auto entries = std::distance(std::filesystem::directory_iterator(folder_), {});
  EXPECT_EQ(entries, 4) << "a temporary file was left";
}

TEST_F(TimelineTest, IsValidJsonInEveryLocale) {
  const test::GroupingLocale locale;
  const auto timeline = Timeline::open(path("t-{rank}"), 1234, 2000);
  timeline->counter("bytes", Timeline::Clock::now(), 4'194'304);
  timeline->span("track", "bar", Timeline::Clock::now(), Timeline::Clock::now());
  timeline->flush();
  const auto file = std::filesystem::directory_iterator(folder_)->path().filename();
  const Json events = read(file.string()).at("traceEvents");
  EXPECT_EQ(events.back().at("pid"), 1234);
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Json& event) {
                            return event.at("ph") == "C" &&
                                   event.at("args").at("value") == 4'194'304;
                          }),
            1);
}

TEST_F(TimelineTest, CountersAreValuesOverTime) {
  const auto timeline = Timeline::open(path("t"), 3, 4);
  const auto now = Timeline::Clock::now();
  timeline->counter("bytes \"in flight\"", now, 7);
  timeline->counter("bytes \"in flight\"", now + 1s, uint64_t{1} << 40);
  timeline->flush();
  std::vector<Json> counters;
  const Json trace = read("t.rank3.json");
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "C") counters.push_back(event);
  }
  ASSERT_EQ(counters.size(), 2U);
  EXPECT_EQ(counters[0].at("name"), "bytes \"in flight\"");
  EXPECT_EQ(counters[0].at("pid"), 3);
  EXPECT_EQ(counters[0].at("args").at("value"), 7);
  EXPECT_EQ(counters[1].at("args").at("value"), uint64_t{1} << 40);
  EXPECT_NEAR(counters[1].at("ts").get<double>() - counters[0].at("ts").get<double>(), 1e6, 1);
}

TEST_F(TimelineTest, IsValidJsonAfterOpenAndEachFlush) {
  const auto timeline = Timeline::open(path("t"), 3, 4);
  EXPECT_TRUE(bars(read("t.rank3.json")).empty());
  const auto now = Timeline::Clock::now();
  for (size_t count = 1; count <= 5; ++count) {
    timeline->span("backward", "step", now, now + 1ms);
    timeline->flush();
    EXPECT_EQ(bars(read("t.rank3.json")).size(), count);
    timeline->flush();
    EXPECT_EQ(bars(read("t.rank3.json")).size(), count) << "an empty flush changed the file";
  }
}

TEST_F(TimelineTest, SaysRankTracksTimesAndDetail) {
  auto timeline = Timeline::open(path("t"), 3, 4);
  const auto now = Timeline::Clock::now();
  timeline->span("wait", "x", now, now + 1500us + 25ns);
  timeline->span("allreduce", "odd \"name\"\n\xff", now + 2ms, now + 3ms, "4 MiB");
  timeline->span("wait", "backwards", now + 1ms, now);
  timeline.reset();
  const Json trace = read("t.rank3.json");
  std::map<int, std::string> tracks;
  for (const Json& event : trace.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 3);
    if (event.at("name") == "process_name") {
      EXPECT_EQ(event.at("args").at("name"), "rank 3");
    }
    if (event.at("name") == "thread_name") tracks[event.at("tid")] = event.at("args").at("name");
  }
  const std::vector<Json> events = bars(trace);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(tracks.size(), 2U);
  EXPECT_EQ(tracks[events[0].at("tid")], "wait");
  EXPECT_EQ(tracks[events[1].at("tid")], "allreduce");
  EXPECT_EQ(events[2].at("tid"), events[0].at("tid"));
  EXPECT_DOUBLE_EQ(events[0].at("dur"), 1500.025);
  EXPECT_FALSE(events[0].contains("args"));
  EXPECT_EQ(events[1].at("args").at("detail"), "4 MiB");
  EXPECT_EQ(events[1].at("name"), "odd \"name\"\nÿ");
  EXPECT_EQ(events[2].at("dur"), 0);
  const double apart = events[1].at("ts").get<double>() - events[0].at("ts").get<double>();
  EXPECT_NEAR(apart, 2000, 1);  // a double of microseconds since 1970 is good to 0.25
}

TEST_F(TimelineTest, ManyEventsOfManyThreadsAllArrive) {
  constexpr size_t kThreads = 4;
  constexpr size_t kEvents = 5000;
  auto timeline = Timeline::open(path("t"), 0, 1);
  {
    std::vector<std::jthread> threads;
    for (size_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&timeline, thread] {
        const std::string track = "track " + std::to_string(thread);
        for (size_t i = 0; i < kEvents; ++i) {
          const auto now = Timeline::Clock::now();
          timeline->span(track, std::to_string(i), now, now);
        }
      });
    }
  }
  timeline.reset();
  std::set<std::pair<int, std::string>> distinct;
  for (const Json& event : bars(read("t.rank0.json"))) {
    distinct.emplace(event.at("tid"), event.at("name"));
  }
  EXPECT_EQ(distinct.size(), kThreads * kEvents);
}

TEST_F(TimelineTest, StopsAtTheLimitAndStaysValid) {
  auto timeline = Timeline::open(path("t"), 0, 1, 10);
  const auto now = Timeline::Clock::now();
  for (int i = 0; i < 25; ++i) timeline->span("track", std::to_string(i), now, now);
  timeline.reset();
  const std::vector<Json> events = bars(read("t.rank0.json"));
  ASSERT_EQ(events.size(), 10U);
  EXPECT_EQ(events.back().at("name"), "9");
}

TEST_F(TimelineTest, ASwitchRecordsFromStartToStop) {
  TimelineSwitch timeline(3, 4);
  const auto record = [&](const std::string& name) {
    const auto now = Timeline::Clock::now();
    timeline.span("track", name, now, now);
    timeline.counter("count of " + name, now, 1);
  };
  const auto names = [&](const std::string& file) {
    std::set<std::string> found;
    for (const Json& bar : bars(read(file))) found.insert(bar.at("name"));
    return found;
  };
  EXPECT_FALSE(timeline.records());
  record("before");
  timeline.flush();
  timeline.stop();
  timeline.start(path("first"));
  EXPECT_TRUE(timeline.records());
  record("in the first");
  timeline.start(path("second"));
  EXPECT_EQ(names("first.rank3.json"), std::set<std::string>{"in the first"});
  record("in the second");
  EXPECT_THROW(timeline.start(path("none/t")), Error);
  record("still in the second");
  timeline.stop();
  EXPECT_FALSE(timeline.records());
  record("after");
  EXPECT_EQ(names("second.rank3.json"),
            (std::set<std::string>{"in the second", "still in the second"}));
  timeline.start(path("first"));
  timeline.stop();
  EXPECT_TRUE(names("first.rank3.json").empty()) << "a file is begun anew";
}

TEST_F(TimelineTest, ASwitchTurnsWhileOtherThreadsRecord) {
  TimelineSwitch timeline(0, 1);
  std::atomic<bool> over{false};
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 3; ++thread) {
      threads.emplace_back([&] {
        while (!over) {
          const auto now = Timeline::Clock::now();
          timeline.span("track", "event", now, now);
        }
      });
    }
    for (int round = 0; round < 20; ++round) {
      timeline.start(path(std::to_string(round)));
      if (round % 2 != 0) continue;
      timeline.stop();
      EXPECT_NO_THROW(read(std::to_string(round) + ".rank0.json"));
    }
    over = true;
  }
  for (int round = 0; round < 20; ++round) {
    EXPECT_NO_THROW(read(std::to_string(round) + ".rank0.json"));
  }
}

// While an object lives, no file of this process may become longer than `bytes`, as on a disk that
// is full.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) : on_signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, on_signal_);
  }
  FileLimit(const FileLimit&) = delete;
  FileLimit& operator=(const FileLimit&) = delete;

 private:
  void (*const on_signal_)(int);
  rlimit before_{};
};

TEST_F(TimelineTest, KeepsWhatItHasWhenTheDiskIsFull) {
  const auto timeline = Timeline::open(path("t"), 0, 1);
  const auto record = [&](const std::string& name) {
    const auto now = Timeline::Clock::now();
    timeline->span("track", name, now, now);
    timeline->flush();
  };
  record("first");
  const std::string first = text_of("t.rank0.json");
  {
    const FileLimit limit(first.size() + 50);
    testing::internal::CaptureStderr();
    record(std::string(1000, 'x'));  // only some of it fits
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr(std::strerror(EFBIG)));
    EXPECT_EQ(text_of("t.rank0.json"), first);
  }
  record("later");  // it has stopped
  EXPECT_EQ(text_of("t.rank0.json"), first);
  EXPECT_EQ(bars(read("t.rank0.json")).size(), 1U);
}

TEST_F(TimelineTest, AFolderThatIsNotThereIsAnErrorOfTheKnob) {
  try {
    Timeline::open(path("none/t"), 0, 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::Config);
    EXPECT_NE(std::string(error.what()).find("HORON_TIMELINE"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("none/t.rank0.json"), std::string::npos);
  }
}

TEST_F(TimelineTest, AFileThatCanNotGetItsNameIsNotLeftBehind) {
  std::filesystem::create_directories(path("t.rank0.json/full"));
  EXPECT_THROW(Timeline::open(path("t"), 0, 1), Error);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

// The same happens if several jobs use one file by mistake. The file is that of the last one.
TEST_F(TimelineTest, SeveralThreadsBeginTheSameFile) {
  std::atomic<int> failures{0};
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&] {
        for (int again = 0; again < 100; ++again) {
          try {
            const auto now = Timeline::Clock::now();
            Timeline::open(path("t"), 0, 1)->span("track", "bar", now, now);
          } catch (const Error&) {
            ++failures;
          }
        }
      });
    }
  }
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(bars(read("t.rank0.json")).size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
}

}  // namespace
}  // namespace horon::core

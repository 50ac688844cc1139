#include "horon/core/base/log.h"

#include <array>
#include <thread>
#include <unistd.h>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/error.h"

namespace horon::core {
namespace {

// What `function` writes to standard error, which is less than a pipe holds.
template <class Function>
std::string written_by(Function function) {
  std::array<int, 2> ends{};
  EXPECT_EQ(pipe(ends.data()), 0);
  const int saved = dup(STDERR_FILENO);
  dup2(ends[1], STDERR_FILENO);
  close(ends[1]);
  function();
  dup2(saved, STDERR_FILENO);
  close(saved);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t got = 0; (got = read(ends[0], part.data(), part.size())) > 0;) {
    text.append(part.data(), static_cast<size_t>(got));
  }
  close(ends[0]);
  return text;
}

TEST(Log, HasNoRankBeforeItIsSet) {
  EXPECT_EQ(written_by([] { log(LogLevel::Warn, "early"); }), "horon warning: early\n");
}

TEST(Log, WritesRankAndLevelAndLeavesOutWhatIsTooFine) {
  set_log(3, LogLevel::Warn);
  EXPECT_TRUE(log_enabled(LogLevel::Error));
  EXPECT_FALSE(log_enabled(LogLevel::Info));
  EXPECT_EQ(written_by([] {
              log(LogLevel::Error, "a");
              log(LogLevel::Warn, "b");
              log(LogLevel::Info, "c");
              log(LogLevel::Debug, "d");
            }),
            "horon [3] error: a\nhoron [3] warning: b\n");
}

TEST(Log, LinesOfThreadsStayWhole) {
  constexpr int kThreads = 4;
  constexpr int kLines = 100;
  set_log(0, LogLevel::Info);
  const std::string text = written_by([] {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([thread] {
        const std::string line(20, static_cast<char>('a' + thread));
        for (int i = 0; i < kLines; ++i) log(LogLevel::Info, line);
      });
    }
  });
  std::array<int, kThreads> seen{};
  size_t begin = 0;
  for (size_t end = 0; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end - begin);
    const int thread = line.back() - 'a';
    ASSERT_TRUE(thread >= 0 && thread < kThreads) << line;
    EXPECT_EQ(line, "horon [0] info: " + std::string(20, line.back()));
    ++seen.at(static_cast<size_t>(thread));
  }
  for (const int count : seen) EXPECT_EQ(count, kLines);
}

TEST(Log, ParsesLevels) {
  EXPECT_EQ(parse_log_level("error"), LogLevel::Error);
  EXPECT_EQ(parse_log_level("debug"), LogLevel::Debug);
  for (const char* text : {"", "Info", "warning", "3"}) {
    try {
      parse_log_level(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::Config);
    }
  }
}

}  // namespace
}  // namespace horon::core

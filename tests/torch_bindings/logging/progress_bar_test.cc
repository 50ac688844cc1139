// What the progress bar writes, to a file and to a terminal.
#include "horon/torch_bindings/logging/progress_bar.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <string>
#include <unistd.h>

#include <gmock/gmock.h>

namespace horon::progress_bar_test {
namespace {

using testing::StartsWith;

// A bar on a file that is read back, under a clock that the test moves.
struct Bar {
  std::FILE* out = std::tmpfile();
  double now = 0;

  ~Bar() { std::fclose(out); }
  ProgressBarOptions options(bool terminal) {
    return {.label = "epoch 1",
            .total = 200,
            .out = out,
            .terminal = terminal,
            .columns = 60,
            .clock = [this] { return now; }};
  }
  std::string written() const {
    std::rewind(out);
    std::string text;
    for (int letter = std::fgetc(out); letter != EOF; letter = std::fgetc(out)) {
      text += static_cast<char>(letter);
    }
    return text;
  }
};

TEST(ProgressBar, WritesALineNowAndThenToAFile) {
  Bar file;
  ProgressBar bar(file.options(false));
  for (int step = 1; step <= 200; ++step) {
    file.now += 0.5;
    bar.update(step, "loss 0.5");
    if (step == 70) bar.print("saved");
  }
  bar.finish();
  bar.update(1);
  EXPECT_EQ(file.written(),
            "epoch 1  30 % [======>             ] 60/200  2/s  1:10 left  loss 0.5\nsaved\n"
            "epoch 1  60 % [============>       ] 120/200  2/s  0:40 left  loss 0.5\n"
            "epoch 1  90 % [==================> ] 180/200  2/s  0:10 left  loss 0.5\n"
            "epoch 1  100 % [====================] 200/200  2/s  1:40  loss 0.5\n");
}

TEST(ProgressBar, DoesNotCountWhatWasDoneBefore) {
  Bar file;
  ProgressBarOptions options = file.options(false);
  options.initial = 100;
  ProgressBar bar(options);
  for (int step = 101; step <= 170; ++step) {
    file.now += 0.5;
    bar.update(step);
  }
  bar.finish();
  EXPECT_EQ(file.written(),
            "epoch 1  80 % [================>   ] 160/200  2/s  0:20 left\n"
            "epoch 1  85 % [=================>  ] 170/200  2/s  0:15 left\n");
  Bar idle;
  ProgressBarOptions nothing_new = idle.options(false);
  nothing_new.initial = 100;
  ProgressBar(nothing_new).finish();
  EXPECT_EQ(idle.written(), "epoch 1  50 % [==========>         ] 100/200\n");
}

TEST(ProgressBar, WritesItsLineAgainOnATerminal) {
  Bar terminal;
  {
    ProgressBar bar(terminal.options(true));
    bar.update(0);
    terminal.now = 0.05;
    bar.update(5);  // too early
    terminal.now = 0.5;
    bar.update(50, "a note that is longer than the line");
    bar.print("saved");
  }
  EXPECT_EQ(terminal.written(),
            "\repoch 1  0 % [>                   ] 0/200\x1b[K"
            "\repoch 1  25 % [=====>              ] 50/200  100/s  0:02 le\x1b[K"
            "\r\x1b[Ksaved\n"
            "\repoch 1  25 % [=====>              ] 50/200  100/s  0:02 le\x1b[K\n");
}

TEST(ProgressBar, DoesNotCutLetters) {
  Bar terminal;
  ProgressBarOptions options = terminal.options(true);
  options.label = "\xc3\xa4\xc3\xa4\xc3\xa4";
  options.columns = 6;
  ProgressBar(options).update(0);
  EXPECT_EQ(terminal.written(), "\r\xc3\xa4\xc3\xa4\x1b[K\n");
}

TEST(ProgressBar, KnowsATerminal) {
  const int controller = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (controller < 0 || ::grantpt(controller) != 0 || ::unlockpt(controller) != 0) {
    GTEST_SKIP() << "there are no pseudo terminals here";
  }
  std::FILE* const out = std::fopen(::ptsname(controller), "w");
  ASSERT_NE(out, nullptr);
  ProgressBar({.out = out}).update(12345);
  std::array<char, 256> read{};
  ASSERT_GT(::read(controller, read.data(), read.size() - 1), 0);
  EXPECT_THAT(read.data(), StartsWith("\r12345"));
  std::fclose(out);
  ::close(controller);
}

}  // namespace
}  // namespace horon::progress_bar_test

// The protocol as readable stories: transcripts/*.txt hold commands and their expected effects.
// After an intended change of the protocol run with --rewrite and read the difference.
#include "horon/tests/support/simulation/transcript.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace horon::simulation {
namespace {

bool rewrite = false;

std::vector<std::filesystem::path> transcripts() {
  std::vector<std::filesystem::path> paths;
  const std::filesystem::path folder = std::filesystem::path(HORON_TEST_DATA) / "transcripts";
  for (const auto& file : std::filesystem::directory_iterator(folder)) paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::string read(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Transcripts, SayWhatHappens) {
  const auto paths = transcripts();
  EXPECT_GE(paths.size(), 12U);
  for (const auto& path : paths) {
    const std::string expected = read(path);
    const std::string actual = run_transcript(expected);
    EXPECT_EQ(actual.find("VIOLATION"), std::string::npos) << path;
    if (rewrite) {
      std::ofstream(path) << actual;
    } else {
      EXPECT_EQ(actual, expected) << path << ": if this is as it should be, run with --rewrite";
    }
  }
}

TEST(Transcripts, UnknownCommandsAreRefused) {
  EXPECT_THROW(run_transcript("ranks 2\nsubmitt 0 x\n"), std::invalid_argument);
  EXPECT_THROW(run_transcript("ranks 2\nsubmit 0 x float31\n"), std::invalid_argument);
  EXPECT_THROW(run_transcript("submit 0 x\n"), std::invalid_argument);
}

TEST(Transcripts, WrongAnswersAreReplaced) {
  const std::string text = run_transcript("ranks 1\nsubmit 0 x\n  nothing of that kind\n");
  EXPECT_EQ(text, "ranks 1\nsubmit 0 x\n  0: starts batch 0: x (1 contributors)\n");
}

}  // namespace
}  // namespace horon::simulation

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string(argv[i]) == "--rewrite") horon::simulation::rewrite = true;
  }
  return RUN_ALL_TESTS();
}

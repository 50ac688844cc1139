// A driver for fuzzers where there is no libFuzzer: replays the files of a folder, then changes
// them at random. Usage: PROGRAM CORPUS_DIR [--iterations=N] [--seed=S]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using Input = std::vector<uint8_t>;

std::vector<Input> read_corpus(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  for (const auto& file : std::filesystem::directory_iterator(folder)) paths.push_back(file.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Input> corpus;
  for (const auto& path : paths) {
    std::ifstream in(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void change(Input& input, const std::vector<Input>& corpus, std::mt19937_64& random) {
  const size_t place = input.empty() ? 0 : random() % input.size();
  const auto at = input.begin() + static_cast<int64_t>(place);
  switch (input.empty() ? 3 : random() % 6) {
    case 0:
      *at ^= static_cast<uint8_t>(1U << random() % 8);
      return;
    case 1:
      *at = static_cast<uint8_t>(random());
      return;
    case 2:
      input.erase(at);
      return;
    case 3:
      input.insert(at, static_cast<uint8_t>(random()));
      return;
    case 4:
      input.resize(place);
      return;
    default: {  // the rest of another input
      const Input& other = corpus[random() % corpus.size()];
      const size_t from = other.empty() ? 0 : random() % other.size();
      input.erase(at, input.end());
      input.insert(input.end(), other.begin() + static_cast<int64_t>(from), other.end());
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t iterations = 100000;
  uint64_t seed = 1;
  std::string folder;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag.starts_with("--iterations=")) {
      iterations = std::strtoull(argv[i] + 13, nullptr, 10);
    } else if (flag.starts_with("--seed=")) {
      seed = std::strtoull(argv[i] + 7, nullptr, 10);
    } else {
      folder = flag;
    }
  }
  const std::vector<Input> corpus = read_corpus(folder);
  if (corpus.empty()) {
    std::fprintf(stderr, "no files in %s\n", folder.c_str());
    return 2;
  }
  for (const Input& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  std::mt19937_64 random(seed);
  for (uint64_t i = 0; i < iterations; ++i) {
    Input input = corpus[random() % corpus.size()];
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) change(input, corpus, random);
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs and %llu changed ones\n", corpus.size(),
              static_cast<unsigned long long>(iterations));
  return 0;
}

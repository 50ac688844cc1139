// A driver for fuzzers where there is no libFuzzer: takes the inputs of fuzz_corpus(), then random
// changes of them. Usage: PROGRAM [--iterations=N] [--seed=S] [--write=FOLDER]
// --write: only writes the inputs into the folder, for libFuzzer.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "horon/tests/support/fuzz_corpus.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

using horon::testing_support::fuzz_corpus;
using Input = horon::testing_support::FuzzInput;

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
    } else if (flag.starts_with("--write=")) {
      folder = flag.substr(8);
    } else {
      std::fprintf(stderr, "unknown argument %s\n", argv[i]);
      return 2;
    }
  }
  const std::vector<Input> corpus = fuzz_corpus();
  if (!folder.empty()) {
    std::filesystem::create_directories(folder);
    for (size_t i = 0; i < corpus.size(); ++i) {
      std::ofstream out(std::filesystem::path(folder) / std::to_string(i), std::ios::binary);
      for (const uint8_t byte : corpus[i]) out.put(static_cast<char>(byte));
    }
    return 0;
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

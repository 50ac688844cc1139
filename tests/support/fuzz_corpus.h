// What a fuzzer begins with, where the driver is fuzz_main.cc.
#pragma once

#include <cstdint>
#include <vector>

namespace horon::testing_support {

using FuzzInput = std::vector<uint8_t>;

// Written by the fuzzer's own file. Made by the code that is tested, so that it stays readable when
// a format changes.
std::vector<FuzzInput> fuzz_corpus();

}  // namespace horon::testing_support

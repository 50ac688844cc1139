#include "horon/bench/standard_output.h"

#include <cstdio>

namespace horon::bench {

int code_with_output(const char* program, int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return code;
  (void)std::fprintf(stderr, "%s: the results could not be written to standard output\n", program);
  return 1;
}

}  // namespace horon::bench

// Whether what a program has printed has arrived.
#pragma once

namespace horon::bench {

// For the end of main(). Returns `code`, or 1 if standard output could not be written (a full
// disk), which it tells on standard error.
int code_with_output(const char* program, int code);

}  // namespace horon::bench

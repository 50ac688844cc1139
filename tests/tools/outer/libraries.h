// Two shared libraries of one program, each of which calls Horon.
#pragma once

namespace first {
void init();
int rank();
}  // namespace first

namespace second {
void init();
int rank();
// Throws a horon::Error that comes from Horon, through this library.
void make_wrong_process_set();
void shutdown();
}  // namespace second

// How many of a rank's cores a thread takes.
#pragma once

namespace horon::torch_detail {

// What LibTorch computes on the calling thread from now on, it computes on this thread alone; other
// threads keep their numbers. The first call of a thread counts: a program may set another number
// behind it. Does nothing where LibTorch's threads are not those of OpenMP.
void use_one_core();

}  // namespace horon::torch_detail

#include "horon/torch_bindings/tensors/thread_cores.h"

#include <dlfcn.h>

#include <ATen/Parallel.h>

namespace horon::torch_detail {
namespace {

using SetThreads = void (*)(int);

// Looked up, since no header need be there, and it is to be that of LibTorch's OpenMP, whichever
// Horon is built with.
void set_threads_of_this_one() {
  static const auto function =
      reinterpret_cast<SetThreads>(::dlsym(RTLD_DEFAULT, "omp_set_num_threads"));
  if (function == nullptr) return;
  // at::set_num_threads() would set it for threads to come, too. A thread's first look at the
  // number sets the program's, which must not come later.
  (void)at::get_num_threads();
  function(1);
}

}  // namespace

void use_one_core() {
  static thread_local bool is_done = false;
  if (is_done) return;
  is_done = true;
  set_threads_of_this_one();
}

}  // namespace horon::torch_detail

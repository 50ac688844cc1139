// The loops of LARS and LAMB over the elements of one tensor in host memory.
//
// Each product and each sum is rounded by itself, so that ranks with equal numbers make equal steps
// on CPUs of any kind. Elements are float32 or float64, and the arithmetic is theirs; sums of
// squares are float64.
#pragma once

#include <cstdint>

namespace horon::torch_detail {

struct LarsTerms {
  double lr = 0;
  double momentum = 0;
  double weight_decay = 0;
  double rate = 1;  // of the layer
  bool momentum_correction = true;
};

// `buffer`: the momentum; unused, and may be null, if there is none.
template <class T>
void lars_loop(T* parameter, const T* gradient, T* buffer, int64_t count, const LarsTerms& terms);

struct LambTerms {
  double beta1 = 0;
  double beta2 = 0;
  double correction1 = 1;  // 1 - beta1^t
  double correction2 = 1;
  double eps = 0;
  double weight_decay = 0;
};

struct LambSquares {
  double parameter = 0;
  double move = 0;
};

// The first pass: moves both averages, and adds up the squares of the parameter and of what it is
// to be moved by (the paper's r).
template <class T>
LambSquares lamb_average(const T* parameter, const T* gradient, T* first, T* second, int64_t count,
                         const LambTerms& terms);
// The second pass: computes r again, which costs less than memory for it. `ratio`: of the layer.
template <class T>
void lamb_move(T* parameter, const T* first, const T* second, int64_t count, const LambTerms& terms,
               double ratio, double lr);

}  // namespace horon::torch_detail

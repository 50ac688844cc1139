// The arithmetic of Adasum on host memory: of two vectors a and b
//
//   adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b
//
// so orthogonal vectors are added, and of parallel ones the mean of the lengths is taken. A vector
// of zeros is neutral, and so is one of float64 whose length is below 1e-77: the quotient would not
// be exact. Vectors of float64 whose length is above 1e154 give NaN.
//
// Source: Maleki et al., "Scaling Distributed Training with Adaptive Summation", MLSys 2021.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horon/core/base/dtype.h"

namespace horon::ops {

// The scalar products of two vectors, or of a part of them. Summed in double.
struct AdasumProducts {
  double ab = 0;
  double aa = 0;
  double bb = 0;

  AdasumProducts& operator+=(const AdasumProducts& more) {
    ab += more.ab;
    aa += more.aa;
    bb += more.bb;
    return *this;
  }
};

// The factors of the two vectors.
struct AdasumFactors {
  double a = 1;
  double b = 1;
  // No element of either vector exceeds this once it is multiplied.
  double most = 0;
};

AdasumFactors adasum_factors(const AdasumProducts& products);

// Floating types. Any thread; pointers need no alignment.
AdasumProducts adasum_products(DataType dtype, const std::byte* a, const std::byte* b,
                               int64_t count);
// to[i] = factors.a * a[i] + factors.b * b[i], calculated in float, float64 in double. A factor or
// a product may be beyond float32 though no result is. `to` may be `a` or `b`.
void adasum_combine(DataType dtype, const AdasumFactors& factors, const std::byte* a,
                    const std::byte* b, std::byte* to, int64_t count);

}  // namespace horon::ops

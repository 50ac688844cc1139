// CMake has the compiler make vectors of these loops, and keeps it from fusing products and sums.
#include "horon/torch_bindings/lr/layer_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

namespace horon::torch_detail {
namespace {

constexpr int64_t kLanes = 8;     // sums that do not wait for each other
constexpr int64_t kPiece = 1024;  // elements whose moves stay in the first cache

// In the order of sum_of_squares() (gradient_norm.h).
class Squares {
 public:
  // All pieces but the last are of whole lanes.
  template <class T>
  void add(const T* values, int64_t count) {
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) {
        const auto value = static_cast<double>(values[i + lane]);
        lanes_[static_cast<size_t>(lane)] += value * value;
      }
    }
    for (; i < count; ++i) {
      const auto value = static_cast<double>(values[i]);
      lanes_[0] += value * value;
    }
  }
  double sum() const {
    double all = 0;
    for (const double lane : lanes_) all += lane;
    return all;
  }

 private:
  std::array<double, kLanes> lanes_ = {};
};

// The terms in the type of the elements.
template <class T>
struct LambFactors {
  explicit LambFactors(const LambTerms& terms)
      : correction1(static_cast<T>(terms.correction1)),
        correction2(static_cast<T>(terms.correction2)),
        eps(static_cast<T>(terms.eps)),
        weight_decay(static_cast<T>(terms.weight_decay)) {}

  T move(T parameter, T first, T second) const {
    const T root = std::sqrt(second / correction2) + eps;
    return first / correction1 / root + parameter * weight_decay;
  }

  T correction1, correction2, eps, weight_decay;
};

template <class T>
void average_piece(const T* __restrict parameter, const T* __restrict gradient, T* __restrict first,
                   T* __restrict second, T* __restrict move, int64_t count,
                   const LambTerms& terms) {
  const LambFactors<T> factors(terms);
  const auto beta1 = static_cast<T>(terms.beta1), rest1 = static_cast<T>(1 - terms.beta1);
  const auto beta2 = static_cast<T>(terms.beta2), rest2 = static_cast<T>(1 - terms.beta2);
  for (int64_t i = 0; i < count; ++i) {
    first[i] = first[i] * beta1 + gradient[i] * rest1;
    second[i] = second[i] * beta2 + gradient[i] * rest2 * gradient[i];
    move[i] = factors.move(parameter[i], first[i], second[i]);
  }
}

template <class T>
void move_piece(T* __restrict parameter, const T* __restrict first, const T* __restrict second,
                int64_t count, const LambFactors<T>& factors, T ratio, T lr) {
  for (int64_t i = 0; i < count; ++i) {
    parameter[i] -= factors.move(parameter[i], first[i], second[i]) * ratio * lr;
  }
}

template <class T>
void lars_with_momentum(T* __restrict parameter, const T* __restrict gradient, T* __restrict buffer,
                        int64_t count, const LarsTerms& terms) {
  const auto decay = static_cast<T>(terms.weight_decay), rate = static_cast<T>(terms.rate);
  const auto momentum = static_cast<T>(terms.momentum);
  const auto kept = static_cast<T>(terms.momentum_correction ? 1 : terms.lr);
  const auto used = static_cast<T>(terms.momentum_correction ? terms.lr : 1);
  for (int64_t i = 0; i < count; ++i) {
    const T move = (gradient[i] + parameter[i] * decay) * rate;
    buffer[i] = buffer[i] * momentum + move * kept;
    parameter[i] -= buffer[i] * used;
  }
}

template <class T>
void lars_plain(T* __restrict parameter, const T* __restrict gradient, int64_t count,
                const LarsTerms& terms) {
  const auto decay = static_cast<T>(terms.weight_decay), rate = static_cast<T>(terms.rate);
  const auto lr = static_cast<T>(terms.lr);
  for (int64_t i = 0; i < count; ++i) {
    parameter[i] -= (gradient[i] + parameter[i] * decay) * rate * lr;
  }
}

}  // namespace

template <class T>
void lars_loop(T* parameter, const T* gradient, T* buffer, int64_t count, const LarsTerms& terms) {
  if (terms.momentum == 0) {
    lars_plain(parameter, gradient, count, terms);
  } else {
    lars_with_momentum(parameter, gradient, buffer, count, terms);
  }
}

template <class T>
LambSquares lamb_average(const T* parameter, const T* gradient, T* first, T* second, int64_t count,
                         const LambTerms& terms) {
  Squares of_parameter, of_move;
  std::array<T, kPiece> move;
  for (int64_t begin = 0; begin < count; begin += kPiece) {
    const int64_t length = std::min(kPiece, count - begin);
    average_piece(parameter + begin, gradient + begin, first + begin, second + begin, move.data(),
                  length, terms);
    of_parameter.add(parameter + begin, length);
    of_move.add(move.data(), length);
  }
  return {of_parameter.sum(), of_move.sum()};
}

template <class T>
void lamb_move(T* parameter, const T* first, const T* second, int64_t count, const LambTerms& terms,
               double ratio, double lr) {
  move_piece(parameter, first, second, count, LambFactors<T>(terms), static_cast<T>(ratio),
             static_cast<T>(lr));
}

template void lars_loop(float*, const float*, float*, int64_t, const LarsTerms&);
template void lars_loop(double*, const double*, double*, int64_t, const LarsTerms&);
template LambSquares lamb_average(const float*, const float*, float*, float*, int64_t,
                                  const LambTerms&);
template LambSquares lamb_average(const double*, const double*, double*, double*, int64_t,
                                  const LambTerms&);
template void lamb_move(float*, const float*, const float*, int64_t, const LambTerms&, double,
                        double);
template void lamb_move(double*, const double*, const double*, int64_t, const LambTerms&, double,
                        double);

}  // namespace horon::torch_detail

// The loops of all kernels, compiled once for each instruction set (kernel_vectors.h).
//
// `Isa` gives the width of a vector and the conversions of 16-bit floats.
#pragma once

#include <cstddef>
#include <cstdint>

#include "horon/ops/host/kernel_int8_blocks.h"
#include "horon/ops/host/kernel_table.h"
#include "horon/ops/host/kernel_vectors.h"

namespace horon::ops {
namespace {

template <class T>
inline constexpr bool kIsFloating = false;
template <>
inline constexpr bool kIsFloating<float> = true;
template <>
inline constexpr bool kIsFloating<double> = true;

template <class T>
struct UnsignedOf {
  using type = T;
};
template <>
struct UnsignedOf<float> {
  using type = uint32_t;
};
template <>
struct UnsignedOf<double> {
  using type = uint64_t;
};

template <class Isa>
struct Half {
  using Element = uint16_t;
  using Lane = float;
  static constexpr int kLanes = Isa::kVectorBytes / 4;
  using V = Vector<float, kLanes>;
  static V load(const Element* from) { return Isa::template load_half<V>(from); }
  static void store(Element* to, const V& value) { Isa::store_half(to, value); }
};

template <class Isa>
struct BFloat16 {
  using Element = uint16_t;
  using Lane = float;
  static constexpr int kLanes = Isa::kVectorBytes / 4;
  using V = Vector<float, kLanes>;
  using Bits = Vector<uint32_t, kLanes>;
  using Packed = Vector<uint16_t, kLanes>;
  static V load(const Element* from) {
    return (V)(__builtin_convertvector(load_vector<Packed>(from), Bits) << 16);
  }
  static void store(Element* to, const V& value) {
    const Bits bits = (Bits)value;
    const Bits rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Bits quiet = (bits >> 16) | 0x40;
    const Bits is_nan = (Bits)(value != value);
    store_vector(to, __builtin_convertvector((quiet & is_nan) | (rounded & ~is_nan), Packed));
  }
};

struct Sum {
  template <class L, class V>
  static V apply(const V& a, const V& b) {
    return a + b;
  }
};
struct Product {
  template <class L, class V>
  static V apply(const V& a, const V& b) {
    return a * b;
  }
};
struct And {
  template <class L, class V>
  static V apply(const V& a, const V& b) {
    return a & b;
  }
};
struct Or {
  template <class L, class V>
  static V apply(const V& a, const V& b) {
    return a | b;
  }
};
struct Xor {
  template <class L, class V>
  static V apply(const V& a, const V& b) {
    return a ^ b;
  }
};

// Min and Max, with the same bits for every order of the ranks. Numbers that compare equal have
// equal bits, except the two zeros: for these the "or" of the bits gives -0 and the "and" gives +0.
// Every NaN gives the same NaN.
template <bool kMin>
struct Extreme {
  template <class L, class V>
  static V apply(const V& a, const V& b) {
    const auto a_wins = kMin ? a < b : a > b;
    if constexpr (kIsFloating<L>) {
      using Bits = Vector<typename UnsignedOf<L>::type, sizeof(V) / sizeof(L)>;
      const Bits a_bits = (Bits)a;
      const Bits b_bits = (Bits)b;
      const Bits a_mask = (Bits)a_wins;
      const Bits b_mask = (Bits)(kMin ? b < a : b > a);
      const Bits same = (Bits)(a == b);
      const Bits tie = kMin ? (a_bits | b_bits) : (a_bits & b_bits);
      const Bits nan = (Bits)(V{} + static_cast<L>(__builtin_nanf("")));
      return (V)((a_bits & a_mask) | (b_bits & b_mask) | (tie & same) |
                 (nan & ~(a_mask | b_mask | same)));
    } else {
      return a_wins ? a : b;
    }
  }
};

template <class F, bool kScaled>
typename F::V load_scaled(const typename F::Element* from, const typename F::V& prescale) {
  const typename F::V value = F::load(from);
  if constexpr (kScaled) return value * prescale;
  return value;
}

// Reduces the last elements, fewer than one vector, in padded copies.
template <class F, class Op, bool kScaled>
void reduce_tail(const ReduceCall& call, int64_t begin, const typename F::V& prescale,
                 const typename F::V& factor) {
  using Element = typename F::Element;
  const size_t bytes = static_cast<size_t>(call.count - begin) * sizeof(Element);
  Element padded[F::kLanes] = {};
  __builtin_memcpy(padded, static_cast<const Element*>(call.inputs[0]) + begin, bytes);
  typename F::V sum = load_scaled<F, kScaled>(padded, prescale);
  for (int k = 1; k < call.input_count; ++k) {
    __builtin_memcpy(padded, static_cast<const Element*>(call.inputs[k]) + begin, bytes);
    sum = Op::template apply<typename F::Lane>(sum, load_scaled<F, kScaled>(padded, prescale));
  }
  if constexpr (kIsFloating<typename F::Lane>) sum = sum * factor;
  F::store(padded, sum);
  for (int j = 0; j < call.output_count; ++j) {
    __builtin_memcpy(static_cast<Element*>(call.outputs[j]) + begin, padded, bytes);
  }
}

// Reduces from element `begin` on in whole steps of kVectors vectors. Returns the first element
// that is left. kRanks > 0: the number of inputs and of outputs, known to the compiler.
template <class F, class Op, int kRanks, bool kScaled, int kVectors>
int64_t reduce_steps(const ReduceCall& call, int64_t begin, const typename F::V& prescale,
                     const typename F::V& factor) {
  using Element = typename F::Element;
  using Lane = typename F::Lane;
  constexpr int64_t kStep = kVectors * F::kLanes;
  const int inputs = kRanks > 0 ? kRanks : call.input_count;
  const int outputs = kRanks > 0 ? kRanks : call.output_count;
  int64_t i = begin;
  for (; i + kStep <= call.count; i += kStep) {
    typename F::V sum[kVectors];
    const Element* first = static_cast<const Element*>(call.inputs[0]) + i;
    for (int u = 0; u < kVectors; ++u) {
      sum[u] = load_scaled<F, kScaled>(first + u * F::kLanes, prescale);
    }
    for (int k = 1; k < inputs; ++k) {
      const Element* from = static_cast<const Element*>(call.inputs[k]) + i;
      for (int u = 0; u < kVectors; ++u) {
        const typename F::V value = load_scaled<F, kScaled>(from + u * F::kLanes, prescale);
        sum[u] = Op::template apply<Lane>(sum[u], value);
      }
    }
    if constexpr (kIsFloating<Lane>) {
      for (int u = 0; u < kVectors; ++u) sum[u] = sum[u] * factor;
    }
    for (int j = 0; j < outputs; ++j) {
      Element* to = static_cast<Element*>(call.outputs[j]) + i;
      for (int u = 0; u < kVectors; ++u) F::store(to + u * F::kLanes, sum[u]);
    }
  }
  return i;
}

template <class F, class Op, int kRanks, bool kScaled>
void reduce_loop(const ReduceCall& call) {
  using Lane = typename F::Lane;
  const typename F::V prescale = typename F::V{} + static_cast<Lane>(call.prescale);
  const typename F::V factor = typename F::V{} + static_cast<Lane>(call.factor);
  // Four vectors at once, because the loop over the ranks costs more than one vector's work.
  int64_t i = reduce_steps<F, Op, kRanks, kScaled, 4>(call, 0, prescale, factor);
  i = reduce_steps<F, Op, kRanks, kScaled, 1>(call, i, prescale, factor);
  if (i < call.count) reduce_tail<F, Op, kScaled>(call, i, prescale, factor);
}

template <class F, class Op>
void reduce(const ReduceCall& call) {
  if constexpr (kIsFloating<typename F::Lane>) {
    if (call.prescale != 1.0) return reduce_loop<F, Op, 0, true>(call);
  }
  if (call.input_count == 2 && call.output_count == 2) return reduce_loop<F, Op, 2, false>(call);
  reduce_loop<F, Op, 0, false>(call);
}

// Integers: the sum in 64 bits (it wraps), divided and truncated toward zero.
template <class T>
void average(const ReduceCall& call) {
  constexpr int64_t kBlock = 256;  // 2 KiB at most: see core/base/copy_bytes.h
  for (int64_t begin = 0; begin < call.count; begin += kBlock) {
    const int64_t n = call.count - begin < kBlock ? call.count - begin : kBlock;
    uint64_t sum[kBlock] = {};
    for (int k = 0; k < call.input_count; ++k) {
      const T* from = static_cast<const T*>(call.inputs[k]) + begin;
      for (int64_t i = 0; i < n; ++i) {
        T value;
        __builtin_memcpy(&value, from + i, sizeof(T));
        sum[i] += static_cast<uint64_t>(static_cast<int64_t>(value));
      }
    }
    T block[kBlock];
    for (int64_t i = 0; i < n; ++i) {
      block[i] = static_cast<T>(static_cast<int64_t>(sum[i]) / call.divisor);
    }
    for (int j = 0; j < call.output_count; ++j) {
      __builtin_memcpy(static_cast<T*>(call.outputs[j]) + begin, block,
                       static_cast<size_t>(n) * sizeof(T));
    }
  }
}

template <class F>
void widen_loop(const void* from, float* to, int64_t count, float factor) {
  const auto* elements = static_cast<const uint16_t*>(from);
  const typename F::V factors = typename F::V{} + factor;
  int64_t i = 0;
  for (; i + F::kLanes <= count; i += F::kLanes) {
    store_vector(to + i, F::load(elements + i) * factors);
  }
  const auto rest = static_cast<size_t>(count - i);
  if (rest == 0) return;
  uint16_t padded[F::kLanes] = {};
  __builtin_memcpy(padded, elements + i, rest * sizeof(uint16_t));
  const typename F::V value = F::load(padded) * factors;
  __builtin_memcpy(to + i, &value, rest * sizeof(float));
}

template <class F>
void narrow_loop(const float* from, void* to, int64_t count, float factor) {
  auto* elements = static_cast<uint16_t*>(to);
  const typename F::V factors = typename F::V{} + factor;
  int64_t i = 0;
  for (; i + F::kLanes <= count; i += F::kLanes) {
    F::store(elements + i, load_vector<typename F::V>(from + i) * factors);
  }
  const auto rest = static_cast<size_t>(count - i);
  if (rest == 0) return;
  typename F::V value = {};
  __builtin_memcpy(&value, from + i, rest * sizeof(float));
  uint16_t padded[F::kLanes];
  F::store(padded, value * factors);
  __builtin_memcpy(elements + i, padded, rest * sizeof(uint16_t));
}

template <class F>
void fill_floating(KernelTable& table, DataType dtype) {
  KernelTable::Reduce* row = table.reduce[static_cast<int>(dtype)];
  row[static_cast<int>(ReduceOp::Sum)] = reduce<F, Sum>;
  row[static_cast<int>(ReduceOp::Average)] = reduce<F, Sum>;
  row[static_cast<int>(ReduceOp::Min)] = reduce<F, Extreme<true>>;
  row[static_cast<int>(ReduceOp::Max)] = reduce<F, Extreme<false>>;
  row[static_cast<int>(ReduceOp::Product)] = reduce<F, Product>;
}

template <class F>
void fill_bitwise(KernelTable& table, DataType dtype) {
  KernelTable::Reduce* row = table.reduce[static_cast<int>(dtype)];
  row[static_cast<int>(ReduceOp::BitAnd)] = reduce<F, And>;
  row[static_cast<int>(ReduceOp::BitOr)] = reduce<F, Or>;
  row[static_cast<int>(ReduceOp::BitXor)] = reduce<F, Xor>;
}

// Sums and products use the unsigned type, where overflow is defined. The bits are those of the
// signed result.
template <class Isa, class T, class Unsigned>
void fill_integer(KernelTable& table, DataType dtype) {
  KernelTable::Reduce* row = table.reduce[static_cast<int>(dtype)];
  row[static_cast<int>(ReduceOp::Sum)] = reduce<Plain<Isa, Unsigned>, Sum>;
  row[static_cast<int>(ReduceOp::Average)] = average<T>;
  row[static_cast<int>(ReduceOp::Min)] = reduce<Plain<Isa, T>, Extreme<true>>;
  row[static_cast<int>(ReduceOp::Max)] = reduce<Plain<Isa, T>, Extreme<false>>;
  row[static_cast<int>(ReduceOp::Product)] = reduce<Plain<Isa, Unsigned>, Product>;
  fill_bitwise<Plain<Isa, Unsigned>>(table, dtype);
}

template <class Isa>
KernelTable make_table(const char* name) {
  KernelTable table = {};
  table.name = name;
  fill_floating<Plain<Isa, float>>(table, DataType::Float32);
  fill_floating<Plain<Isa, double>>(table, DataType::Float64);
  fill_floating<Half<Isa>>(table, DataType::Float16);
  fill_floating<BFloat16<Isa>>(table, DataType::BFloat16);
  fill_integer<Isa, int8_t, uint8_t>(table, DataType::Int8);
  fill_integer<Isa, uint8_t, uint8_t>(table, DataType::UInt8);
  fill_integer<Isa, int16_t, uint16_t>(table, DataType::Int16);
  fill_integer<Isa, int32_t, uint32_t>(table, DataType::Int32);
  fill_integer<Isa, int64_t, uint64_t>(table, DataType::Int64);
  KernelTable::Reduce* row = table.reduce[static_cast<int>(DataType::Bool)];
  row[static_cast<int>(ReduceOp::Sum)] = reduce<Plain<Isa, uint8_t>, Or>;
  row[static_cast<int>(ReduceOp::Max)] = reduce<Plain<Isa, uint8_t>, Or>;
  row[static_cast<int>(ReduceOp::Min)] = reduce<Plain<Isa, uint8_t>, And>;
  row[static_cast<int>(ReduceOp::Product)] = reduce<Plain<Isa, uint8_t>, And>;
  fill_bitwise<Plain<Isa, uint8_t>>(table, DataType::Bool);
  table.widen_half = widen_loop<Half<Isa>>;
  table.widen_bfloat16 = widen_loop<BFloat16<Isa>>;
  table.narrow_half = narrow_loop<Half<Isa>>;
  table.narrow_bfloat16 = narrow_loop<BFloat16<Isa>>;
  table.widen_int8_blocks = widen_int8_loop<Plain<Isa, float>>;
  table.narrow_int8_blocks = narrow_int8_loop<Plain<Isa, float>>;
  return table;
}

}  // namespace
}  // namespace horon::ops

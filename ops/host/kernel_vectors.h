// The compiler's vector types, for the headers of kernels that are compiled once for each
// instruction set.
//
// In these headers everything is in an unnamed namespace, and no inline function from outside is
// called. Otherwise the linker could keep a copy that was compiled for a newer instruction set, and
// use it in the whole program.
#pragma once

#include <cstddef>
#include <cstdint>

namespace horon::ops {
namespace {

template <class T, int kBytes>
struct VectorType {
  typedef T type __attribute__((vector_size(kBytes)));
};
template <class T, int kLanes>
using Vector = typename VectorType<T, kLanes* static_cast<int>(sizeof(T))>::type;

template <class V>
V load_vector(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}
template <class V>
void store_vector(void* to, const V& value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

// How elements are stored in memory, and their type in a register.
template <class Isa, class T>
struct Plain {
  using Element = T;
  using Lane = T;
  static constexpr int kLanes = Isa::kVectorBytes / static_cast<int>(sizeof(T));
  using V = Vector<T, kLanes>;
  static V load(const Element* from) { return load_vector<V>(from); }
  static void store(Element* to, const V& value) { store_vector(to, value); }
};

}  // namespace
}  // namespace horon::ops

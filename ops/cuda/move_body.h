// What one group of threads does with one chunk of a launch. The same text is compiled for the
// device (move_kernels.cu) and for the host (move_on_host.cc), so that every machine can test it.
//
// Whoever includes it has defined HORON_DEVICE_FUNCTION before: what a function of its device is
// marked with, `__device__` or nothing. `Machine` is what differs between the two:
//
//   float Machine::from_half(uint16_t), from_bfloat16(uint16_t)      exact
//   uint16_t Machine::to_half(float), to_bfloat16(float)             rounded to nearest even
#pragma once

#include <cstdint>
#include <type_traits>

#include "horon/ops/cuda/move.h"

namespace horon::ops::move_body {

// A vector of this many bytes is loaded or stored by one instruction.
inline constexpr uint32_t kVectorBytes = 16;

// The thread's place among those that share a chunk.
struct Lane {
  uint32_t index;
  uint32_t count;
};

// Types of two bytes that are no integers.
struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};

template <class T, uint32_t N>
struct alignas(sizeof(T) * N) Vector {
  T values[N];
};

HORON_DEVICE_FUNCTION inline bool is_aligned(const void* address, uint32_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

template <class Machine>
HORON_DEVICE_FUNCTION inline float to_float(float value) {
  return value;
}
template <class Machine>
HORON_DEVICE_FUNCTION inline float to_float(Half value) {
  return Machine::from_half(value.bits);
}
template <class Machine>
HORON_DEVICE_FUNCTION inline float to_float(BFloat16 value) {
  return Machine::from_bfloat16(value.bits);
}

template <class Machine, class To>
HORON_DEVICE_FUNCTION inline To from_float(float value) {
  if constexpr (std::is_same_v<To, Half>) {
    return Half{Machine::to_half(value)};
  } else if constexpr (std::is_same_v<To, BFloat16>) {
    return BFloat16{Machine::to_bfloat16(value)};
  } else {
    return value;
  }
}

// False for infinities and NaN, whose exponents are all ones.
HORON_DEVICE_FUNCTION inline bool is_finite(float value) { return value - value == 0.0F; }
HORON_DEVICE_FUNCTION inline bool is_finite(double value) { return value - value == 0.0; }

// One element. `finite` becomes false if the result is not.
template <class Machine, class From, class To>
struct Scaled {
  double factor;
  bool finite = true;

  HORON_DEVICE_FUNCTION To operator()(From value) {
    if constexpr (std::is_same_v<From, double>) {
      const double scaled = factor * value;
      finite = finite && is_finite(scaled);
      return scaled;
    } else {
      const To result =
          from_float<Machine, To>(static_cast<float>(factor) * to_float<Machine>(value));
      finite = finite && is_finite(to_float<Machine>(result));
      return result;
    }
  }
};

template <class T>
struct Divided {
  int64_t divisor;
  HORON_DEVICE_FUNCTION T operator()(T value) const { return static_cast<T>(value / divisor); }
};

// to[i] = change(from[i]) for the elements of a chunk, as far as possible in vectors. It may be in
// place.
template <class From, class To, class Change>
HORON_DEVICE_FUNCTION inline void change_chunk(const From* from, To* to, uint32_t count, Lane lane,
                                               Change& change) {
  constexpr uint32_t kLarger = sizeof(From) > sizeof(To) ? sizeof(From) : sizeof(To);
  constexpr uint32_t kWidth = kVectorBytes / kLarger;
  using FromVector = Vector<From, kWidth>;
  using ToVector = Vector<To, kWidth>;
  uint32_t in_vectors = 0;
  if (is_aligned(from, sizeof(FromVector)) && is_aligned(to, sizeof(ToVector))) {
    in_vectors = count / kWidth;
    for (uint32_t i = lane.index; i < in_vectors; i += lane.count) {
      const FromVector loaded = reinterpret_cast<const FromVector*>(from)[i];
      ToVector changed;
      for (uint32_t k = 0; k < kWidth; ++k) changed.values[k] = change(loaded.values[k]);
      reinterpret_cast<ToVector*>(to)[i] = changed;
    }
  }
  for (uint32_t i = in_vectors * kWidth + lane.index; i < count; i += lane.count) {
    to[i] = change(from[i]);
  }
}

template <class Word>
struct Unchanged {
  HORON_DEVICE_FUNCTION Word operator()(Word word) const { return word; }
};

template <class Word>
HORON_DEVICE_FUNCTION inline void copy_words(const void* from, void* to, uint32_t bytes,
                                             Lane lane) {
  Unchanged<Word> unchanged;
  change_chunk(static_cast<const Word*>(from), static_cast<Word*>(to),
               bytes / static_cast<uint32_t>(sizeof(Word)), lane, unchanged);
}

// By the largest word that both addresses and the length allow.
HORON_DEVICE_FUNCTION inline void copy_bytes(const void* from, void* to, uint32_t bytes,
                                             Lane lane) {
  const uintptr_t both = reinterpret_cast<uintptr_t>(from) | reinterpret_cast<uintptr_t>(to);
  if (both % sizeof(uint32_t) == 0 && bytes % sizeof(uint32_t) == 0) {
    copy_words<uint32_t>(from, to, bytes, lane);
  } else if (both % sizeof(uint16_t) == 0 && bytes % sizeof(uint16_t) == 0) {
    copy_words<uint16_t>(from, to, bytes, lane);
  } else {
    copy_words<uint8_t>(from, to, bytes, lane);
  }
}

HORON_DEVICE_FUNCTION inline void fill_bytes(uint64_t pattern, void* to, uint32_t bytes,
                                             Lane lane) {
  auto* const words = static_cast<uint64_t*>(to);
  auto* const single = static_cast<uint8_t*>(to);
  const uint32_t whole = is_aligned(to, sizeof pattern) ? bytes / 8 : 0;
  for (uint32_t i = lane.index; i < whole; i += lane.count) words[i] = pattern;
  for (uint32_t i = whole * 8 + lane.index; i < bytes; i += lane.count) {
    single[i] = static_cast<uint8_t>(pattern >> (8 * (i % 8)));
  }
}

// What a kernel does to a chunk: one type for each kernel.
struct CopyBytes {
  HORON_DEVICE_FUNCTION static void run(const MoveParameters& parameters, const void* from,
                                        void* to, uint32_t count, Lane lane) {
    if (from == nullptr) {
      fill_bytes(parameters.pattern, to, count, lane);
    } else {
      copy_bytes(from, to, count, lane);
    }
  }
};

template <class Machine, class From, class To>
struct Scale {
  HORON_DEVICE_FUNCTION static void run(const MoveParameters& parameters, const void* from,
                                        void* to, uint32_t count, Lane lane) {
    Scaled<Machine, From, To> scaled{parameters.factor};
    change_chunk(static_cast<const From*>(from), static_cast<To*>(to), count, lane, scaled);
    // All that write here write the same.
    if (!scaled.finite && parameters.not_finite != nullptr) *parameters.not_finite = 1;
  }
};

template <class T>
struct Divide {
  HORON_DEVICE_FUNCTION static void run(const MoveParameters& parameters, const void* from,
                                        void* to, uint32_t count, Lane lane) {
    const Divided<T> divided{parameters.divisor};
    change_chunk(static_cast<const T*>(from), static_cast<T*>(to), count, lane, divided);
  }
};

// Does chunk number `chunk` of the launch. The sizes are those of the types in the parameters.
template <class Action>
HORON_DEVICE_FUNCTION inline void run_chunk(const MoveParameters& parameters, const Move* moves,
                                            uint32_t from_size, uint32_t to_size, uint32_t chunk,
                                            Lane lane) {
  // The last move that does not begin behind the chunk.
  uint32_t low = 0;
  uint32_t high = parameters.moves;
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    if (moves[middle].first_chunk <= chunk) {
      low = middle;
    } else {
      high = middle;
    }
  }
  const Move& move = moves[low];
  const uint32_t begin = (chunk - move.first_chunk) * parameters.elements_per_chunk;
  const uint32_t left = move.count - begin;
  const uint32_t count =
      left < parameters.elements_per_chunk ? left : parameters.elements_per_chunk;
  const auto* from = static_cast<const char*>(move.from);
  if (from != nullptr) from += static_cast<uint64_t>(begin) * from_size;
  Action::run(parameters, from,
              static_cast<char*>(move.to) + static_cast<uint64_t>(begin) * to_size, count, lane);
}

template <class Action>
struct ActionTag {
  using Type = Action;
};

// Calls visit(ActionTag<...>{}) with the action of a launch; on the host. False: there is none for
// these types.
template <class Machine, class Visit>
bool visit_action(const MoveParameters& parameters, const Visit& visit) {
  const auto scale = [&](auto from, auto to) {
    visit(ActionTag<Scale<Machine, decltype(from), decltype(to)>>{});
    return true;
  };
  const auto divide = [&](auto zero) {
    visit(ActionTag<Divide<decltype(zero)>>{});
    return true;
  };
  const auto from_to = [&](DataType from, DataType to) {
    return parameters.from_type == from && parameters.to_type == to;
  };
  switch (parameters.kind) {
    case MoveKind::Bytes:
      visit(ActionTag<CopyBytes>{});
      return true;
    case MoveKind::Floats:
      if (from_to(DataType::Float32, DataType::Float32)) return scale(float{}, float{});
      if (from_to(DataType::Float64, DataType::Float64)) return scale(double{}, double{});
      if (from_to(DataType::Float16, DataType::Float16)) return scale(Half{}, Half{});
      if (from_to(DataType::BFloat16, DataType::BFloat16)) return scale(BFloat16{}, BFloat16{});
      if (from_to(DataType::Float32, DataType::Float16)) return scale(float{}, Half{});
      if (from_to(DataType::Float32, DataType::BFloat16)) return scale(float{}, BFloat16{});
      if (from_to(DataType::Float16, DataType::Float32)) return scale(Half{}, float{});
      if (from_to(DataType::BFloat16, DataType::Float32)) return scale(BFloat16{}, float{});
      return false;
    case MoveKind::Divide:
      if (parameters.from_type == DataType::Int8) return divide(int8_t{});
      if (parameters.from_type == DataType::UInt8) return divide(uint8_t{});
      if (parameters.from_type == DataType::Int16) return divide(int16_t{});
      if (parameters.from_type == DataType::Int32) return divide(int32_t{});
      if (parameters.from_type == DataType::Int64) return divide(int64_t{});
      return false;
  }
  return false;
}

}  // namespace horon::ops::move_body

#include "horon/tests/ops/scalar_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace horon::ops {
namespace {

template <class T>
T reduce_numbers(ReduceOp op, T a, T b) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return a + b;
    case ReduceOp::Product:
      return a * b;
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
      if constexpr (std::is_integral_v<T>) {
        if (op == ReduceOp::BitXor) return a ^ b;
        return op == ReduceOp::BitAnd ? a & b : a | b;
      }
      break;
    case ReduceOp::Min:
    case ReduceOp::Max:
    case ReduceOp::Adasum:
      break;
  }
  if constexpr (std::is_floating_point_v<T>) {
    if (std::isnan(a) || std::isnan(b)) return std::nan("");
    if (a == b && std::signbit(a) != std::signbit(b)) return op == ReduceOp::Min ? T{-0.0} : T{0.0};
  }
  return (op == ReduceOp::Min) == (b < a) ? b : a;
}

// One floating element: `values` in rank order, in the type that is reduced.
template <class T>
T reduce_floats(const Reduction& r, const std::vector<T>& values) {
  T result = static_cast<T>(r.prescale) * values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const T scaled = static_cast<T>(r.prescale) * values[i];
    result = reduce_numbers(r.op, result, scaled);
  }
  return result * static_cast<T>(r.postscale / static_cast<double>(r.divisor));
}

int64_t reduce_integers(const Reduction& r, const std::vector<int64_t>& values) {
  if (r.dtype == DataType::Bool && !is_bitwise(r.op)) {
    const bool is_or = r.op == ReduceOp::Sum || r.op == ReduceOp::Max;
    const auto set = [](int64_t value) { return value != 0; };
    return is_or ? std::any_of(values.begin(), values.end(), set)
                 : std::all_of(values.begin(), values.end(), set);
  }
  if (r.op == ReduceOp::Min) return *std::min_element(values.begin(), values.end());
  if (r.op == ReduceOp::Max) return *std::max_element(values.begin(), values.end());
  uint64_t result = static_cast<uint64_t>(values[0]);  // wraps, as the kernels do
  for (size_t i = 1; i < values.size(); ++i) {
    result = reduce_numbers(r.op, result, static_cast<uint64_t>(values[i]));
  }
  const auto number = static_cast<int64_t>(result);
  return r.op == ReduceOp::Average ? number / r.divisor : number;
}

// Some numbers are too large for float16, or too small.
float wild_float(uint64_t sequence, int rank, int64_t i) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const uint64_t bits = mix(sequence, static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
  switch (i % 211) {
    case 7:
      return rank == 0 ? infinity : 1.0F;
    case 8:
      return rank == 0 ? -infinity : infinity;
    case 9:
      return rank == 0 ? std::nanf("") : 1.0F;
    case 10:
      return 65'504.0F + static_cast<float>(bits % 64);
    case 11:
      return 1e-7F * static_cast<float>(bits % 100);
    case 12:
      return -1e30F;
    default:
      return static_cast<float>(bits % 1'000'003) / 1000.0F - 500.0F;
  }
}

}  // namespace

std::vector<std::byte> reference(const Reduction& r, const std::vector<const std::byte*>& inputs,
                                 int64_t count) {
  std::vector<std::byte> result(static_cast<size_t>(count) * size_of(r.dtype));
  visit_type(r.dtype, [&](auto zero) {
    using T = decltype(zero);
    std::vector<T> elements(inputs.size());
    std::vector<float> floats(inputs.size());
    std::vector<int64_t> integers(inputs.size());
    for (int64_t i = 0; i < count; ++i) {
      const int64_t offset = i * static_cast<int64_t>(sizeof(T));
      for (size_t k = 0; k < inputs.size(); ++k) {
        std::memcpy(&elements[k], inputs[k] + offset, sizeof(T));
      }
      T element;
      if constexpr (std::is_floating_point_v<T>) {
        element = reduce_floats(r, elements);
      } else if (is_floating(r.dtype)) {
        for (size_t k = 0; k < inputs.size(); ++k) {
          floats[k] = float_from_16(r.dtype, static_cast<uint16_t>(elements[k]));
        }
        element = static_cast<T>(float_to_16(r.dtype, reduce_floats(r, floats)));
      } else {
        std::copy(elements.begin(), elements.end(), integers.begin());
        element = static_cast<T>(reduce_integers(r, integers));
      }
      std::memcpy(result.data() + offset, &element, sizeof(T));
    }
  });
  return result;
}

void round_to_16(DataType dtype, std::vector<float>& values) {
  for (float& value : values) value = float_from_16(dtype, float_to_16(dtype, value));
}

void round_in_int8_blocks(std::vector<float>& values) {
  constexpr auto kBlock = static_cast<size_t>(kInt8BlockElements);
  for (size_t begin = 0; begin < values.size(); begin += kBlock) {
    const size_t end = std::min(values.size(), begin + kBlock);
    float largest = 0;
    bool finite = true;
    for (size_t i = begin; i < end; ++i) {
      finite = finite && std::isfinite(values[i]);
      largest = std::max(largest, std::abs(values[i]));
    }
    const bool has_step = largest >= 0x1p-112F;
    for (size_t i = begin; i < end; ++i) {
      if (!finite) {
        values[i] = std::nanf("");
      } else if (!has_step) {
        values[i] = 0;
      } else {
        const auto steps = static_cast<int8_t>(std::nearbyint(values[i] * (127.0F / largest)));
        values[i] = static_cast<float>(steps) * (largest / 127.0F);
      }
    }
  }
}

void make_nans_alike(std::vector<float>& values) {
  for (float& value : values) {
    if (std::isnan(value)) value = std::nanf("");
  }
}

std::vector<std::byte> random_numbers(const SmallNumbers& of, DataType dtype, uint64_t sequence,
                                      int rank, int64_t begin, int64_t count) {
  std::vector<std::byte> numbers(static_cast<size_t>(count) * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits =
        mix(sequence, static_cast<uint64_t>(rank), static_cast<uint64_t>(begin + i));
    put_number(dtype, numbers.data(), i, static_cast<int64_t>(bits % of.kinds) + of.least);
  }
  return numbers;
}

std::vector<std::byte> random_floats(DataType dtype, int rank, int64_t count) {
  std::vector<std::byte> numbers(static_cast<size_t>(count) * size_of(dtype));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = mix(3, static_cast<uint64_t>(rank), static_cast<uint64_t>(i));
    const double number = static_cast<double>(bits % 1000003) / 1000.0 - 500.0;
    visit_type(dtype, [&](auto zero) {
      using T = decltype(zero);
      T element = static_cast<T>(number);
      if constexpr (std::is_integral_v<T>) {
        element = static_cast<T>(float_to_16(dtype, static_cast<float>(number)));
      }
      std::memcpy(numbers.data() + i * static_cast<int64_t>(sizeof(T)), &element, sizeof(T));
    });
  }
  return numbers;
}

std::vector<float> wild_floats(uint64_t sequence, int rank, int64_t count) {
  std::vector<float> numbers(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    numbers[static_cast<size_t>(i)] = wild_float(sequence, rank, i);
  }
  return numbers;
}

std::vector<std::byte> random_bytes(uint64_t first, uint64_t second, int64_t bytes) {
  std::vector<std::byte> random(static_cast<size_t>(bytes));
  for (size_t begin = 0; begin < random.size(); begin += sizeof(uint64_t)) {
    const uint64_t bits = mix(first, second, begin);
    std::memcpy(random.data() + begin, &bits, std::min(sizeof(bits), random.size() - begin));
  }
  return random;
}

uint64_t hash_of(std::span<const std::byte> data) {
  uint64_t hash = 0xcbf29ce484222325u;
  std::vector<std::byte> copy(data.size());  // by a call that sanitizers see
  if (!copy.empty()) std::memcpy(copy.data(), data.data(), copy.size());
  for (const std::byte byte : copy) {
    hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  }
  return hash;
}

}  // namespace horon::ops

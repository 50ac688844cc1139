#include "horon/ops/host/host_kernels.h"

#include <cstring>

#include "horon/core/base/error.h"
#include "horon/core/base/narrow_type.h"
#include "horon/ops/host/kernel_table.h"

namespace horon::ops {
namespace {

template <class T>
void widen_integers_as(const std::byte* from, int64_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    to[i] = value;
  }
}

template <class T>
void narrow_quotients_as(const int64_t* from, std::byte* to, int64_t count, int64_t divisor) {
  for (int64_t i = 0; i < count; ++i) {
    const T value = static_cast<T>(from[i] / divisor);
    std::memcpy(to + i * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
  }
}

// Calls visit(T{}) with the C++ type of an integer dtype.
template <class Visit>
void visit_integer(DataType dtype, const Visit& visit) {
  switch (dtype) {
    case DataType::Int8:
      return visit(int8_t{});
    case DataType::UInt8:
      return visit(uint8_t{});
    case DataType::Int16:
      return visit(int16_t{});
    case DataType::Int32:
      return visit(int32_t{});
    case DataType::Int64:
      return visit(int64_t{});
    default:
      HORON_CHECK(false, "not an integer type");
  }
}

}  // namespace

const KernelTable& best_kernels() {
  static const KernelTable& best = *usable_kernels().front();
  return best;
}

std::string_view kernel_instruction_set() { return best_kernels().name; }

void reduce_many(const Reduction& reduction, std::span<const std::byte* const> inputs,
                 std::span<std::byte* const> outputs, int64_t count) {
  const auto reduce =
      best_kernels()
          .reduce[static_cast<size_t>(reduction.dtype)][static_cast<size_t>(reduction.op)];
  HORON_CHECK(reduce != nullptr, "no such reduction");
  HORON_CHECK(!inputs.empty() && reduction.divisor > 0, "a reduction needs inputs and a divisor");
  ReduceCall call;
  call.inputs = reinterpret_cast<const void* const*>(inputs.data());
  call.input_count = static_cast<int>(inputs.size());
  call.outputs = reinterpret_cast<void* const*>(outputs.data());
  call.output_count = static_cast<int>(outputs.size());
  call.count = count;
  call.prescale = reduction.prescale;
  call.factor = reduction.postscale / static_cast<double>(reduction.divisor);
  call.divisor = reduction.divisor;
  reduce(call);
}

void scale(DataType dtype, const std::byte* from, std::byte* to, int64_t count, double factor) {
  HORON_CHECK(is_floating(dtype), "only floating types are scaled");
  Reduction reduction;
  reduction.dtype = dtype;
  reduction.postscale = factor;
  reduce_many(reduction, {&from, 1}, {&to, 1}, count);
}

void widen(DataType dtype, const std::byte* from, float* to, int64_t count, double factor) {
  const KernelTable& table = best_kernels();
  HORON_CHECK(core::is_16_bit_float(dtype), "not a 16-bit float");
  (dtype == DataType::Float16 ? table.widen_half : table.widen_bfloat16)(
      from, to, count, static_cast<float>(factor));
}

void narrow(DataType dtype, const float* from, std::byte* to, int64_t count, double factor) {
  const KernelTable& table = best_kernels();
  HORON_CHECK(core::is_16_bit_float(dtype), "not a 16-bit float");
  (dtype == DataType::Float16 ? table.narrow_half : table.narrow_bfloat16)(
      from, to, count, static_cast<float>(factor));
}

int64_t bytes_of_int8_blocks(int64_t elements) {
  const int64_t blocks = (elements + kInt8BlockElements - 1) / kInt8BlockElements;
  return elements + blocks * static_cast<int64_t>(sizeof(float));
}

void narrow_to_int8_blocks(const float* from, std::byte* to, int64_t count, double factor) {
  best_kernels().narrow_int8_blocks(from, to, count, static_cast<float>(factor));
}

void widen_int8_blocks(const std::byte* from, float* to, int64_t count, double factor) {
  best_kernels().widen_int8_blocks(from, to, count, static_cast<float>(factor));
}

void widen_integers(DataType dtype, const std::byte* from, int64_t* to, int64_t count) {
  visit_integer(dtype, [&](auto zero) { widen_integers_as<decltype(zero)>(from, to, count); });
}

void narrow_quotients(DataType dtype, const int64_t* from, std::byte* to, int64_t count,
                      int64_t divisor) {
  visit_integer(dtype,
                [&](auto zero) { narrow_quotients_as<decltype(zero)>(from, to, count, divisor); });
}

}  // namespace horon::ops

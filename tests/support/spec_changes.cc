#include "horon/tests/support/spec_changes.h"

#include <utility>

namespace horon::test {
namespace {

using core::EntrySpec;

template <class Enum>
void advance(Enum& value, int count) {
  value = static_cast<Enum>((static_cast<int>(value) + 1) % count);
}

// The last tensor; adds one if there is none, for the changes of a tensor.
core::TensorPart& last_tensor(EntrySpec& spec) {
  if (spec.parts.empty()) spec.parts.push_back({"added", {2, 3}});
  return spec.parts.back();
}

template <size_t... Index>
std::vector<size_t> differing(const EntrySpec& a, const EntrySpec& b,
                              std::index_sequence<Index...>) {
  std::vector<size_t> out;
  const auto left = fields_of(a);
  const auto right = fields_of(b);
  const auto compare = [&](size_t index, bool equal) {
    if (!equal) out.push_back(index);
  };
  (compare(Index, std::get<Index>(left) == std::get<Index>(right)), ...);
  return out;
}

}  // namespace

core::EntrySpec spec_to_change() {
  EntrySpec spec;
  spec.parts = {{"grad", {2, 3}}};
  return spec;
}

const std::vector<SpecChange>& spec_changes() {
  static const std::vector<SpecChange> changes = {
      {"collective", [](EntrySpec& s) { advance(s.kind, kCollectiveKindCount); }, "allreduce",
       "broadcast"},
      {"dtype", [](EntrySpec& s) { advance(s.dtype, kDataTypeCount); },
       std::string(to_string(DataType::Float32)),
       std::string(to_string(static_cast<DataType>(static_cast<int>(DataType::Float32) + 1)))},
      {"device", [](EntrySpec& s) { advance(s.device, kDeviceKindCount); }, "host", "cuda"},
      {"reduce op", [](EntrySpec& s) { advance(s.reduce_op, kReduceOpCount); }, "Sum", "Average"},
      {"root", [](EntrySpec& s) { ++s.root; }, "0", "1"},
      {"prescale", [](EntrySpec& s) { s.prescale += 0.5; }, "1", "1.5"},
      {"postscale", [](EntrySpec& s) { s.postscale += 1e-15; }, "1", "1.000000000000001"},
      {"compression", [](EntrySpec& s) { advance(s.compression, kCompressionCount); }, "none",
       "float16"},
      {"piece bytes", [](EntrySpec& s) { s.piece_bytes += 65536; }, "0", "65536"},
      {"capture in a CUDA graph", [](EntrySpec& s) { s.captured = !s.captured; }, "not captured",
       "captured"},
      {"splits", [](EntrySpec& s) { s.splits.push_back(3); }, "even", "[3]"},
      {"division", [](EntrySpec& s) { s.as_one = !s.as_one; }, "of each tensor",
       "of all tensors as one"},
      {"number of tensors",
       [](EntrySpec& s) {
         s.parts.push_back({"one more", {2}});
       },
       "1", "2", true},
      {"tensor name", [](EntrySpec& s) { last_tensor(s).name += "'"; }, "grad", "grad'", true},
      {"shape", [](EntrySpec& s) { last_tensor(s).shape.push_back(1); }, "[2, 3]", "[2, 3, 1]",
       true},
  };
  return changes;
}

std::vector<size_t> differing_fields(const EntrySpec& a, const EntrySpec& b) {
  return differing(a, b, std::make_index_sequence<kSpecFieldCount>());
}

}  // namespace horon::test

#include "horon/torch_bindings/collectives/bytes.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <numeric>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {
namespace {

// For the collective of this name. Without memory it fails on the other ranks too.
at::Tensor room_for(int64_t bytes, const std::string& name, const ProcessSet& set) {
  try {
    return at::empty({bytes}, at::kByte);
  } catch (...) {
    torch_detail::refuse_calls({name}, set, core::current_error());
  }
}

at::Tensor to_tensor(const std::string& bytes, const std::string& name, const ProcessSet& set) {
  at::Tensor tensor = room_for(std::ssize(bytes), name, set);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string to_text(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}

std::vector<std::string> divide(const Handle& handle) {
  const at::Tensor all = handle.wait();
  std::vector<std::string> parts;
  int64_t begin = 0;
  for (const int64_t length : handle.received_splits()) {
    parts.push_back(to_text(all.slice(0, begin, begin + length)));
    begin += length;
  }
  return parts;
}

torch_detail::BlockingCallName name_of(const ObjectOptions& options, std::string_view kind) {
  return {options.name, kind, options.process_set.id()};
}

}  // namespace

std::string broadcast_bytes(const std::string& bytes, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const torch_detail::BlockingCallName name = name_of(options, "broadcast_bytes");
  const ProcessSet& set = options.process_set;
  const auto send = [&](at::Tensor& tensor, const std::string& part) {
    broadcast_(tensor, {.name = part, .root = options.root, .process_set = set});
  };
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  send(size, name.get() + ".size");
  const int64_t count = *size.const_data_ptr<int64_t>();
  const std::string second = name.get() + ".bytes";
  at::Tensor content =
      rank() == options.root ? to_tensor(bytes, second, set) : room_for(count, second, set);
  send(content, second);
  return to_text(content);
}

std::vector<std::string> allgather_bytes(const std::string& bytes, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const torch_detail::BlockingCallName name = name_of(options, "allgather_bytes");
  const ProcessSet& set = options.process_set;
  return divide(
      allgather_async(to_tensor(bytes, name.get(), set), {.name = name.get(), .process_set = set}));
}

std::vector<std::string> gather_bytes(const std::string& bytes, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const torch_detail::BlockingCallName name = name_of(options, "gather_bytes");
  const ProcessSet& set = options.process_set;
  const Handle handle =
      gather_async(to_tensor(bytes, name.get(), set),
                   {.name = name.get(), .root = options.root, .process_set = set});
  handle.wait();
  return rank() == options.root ? divide(handle) : std::vector<std::string>();
}

std::string scatter_bytes(const std::vector<std::string>& parts, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const ProcessSet& set = options.process_set;
  const torch_detail::BlockingCallName name = name_of(options, "scatter_bytes");
  ScatterOptions call{.name = name.get(), .root = options.root};
  call.process_set = set;
  if (rank() != options.root) return to_text(scatter(to_tensor({}, call.name, set), call));
  if (std::ssize(parts) != set.size()) {
    torch_detail::refuse_call(
        call.name, set,
        core::concat("\"", call.name, "\": the root, rank ", options.root, ", gave ", parts.size(),
                     " parts for ", set.size(), " ranks; give one for each rank, in rank order"));
  }
  for (const std::string& part : parts) call.splits.push_back(std::ssize(part));
  const auto bytes = std::accumulate(call.splits.begin(), call.splits.end(), int64_t{0});
  at::Tensor all = room_for(bytes, call.name, set);
  auto* place = static_cast<char*>(all.mutable_data_ptr());
  for (const std::string& part : parts) place = std::copy(part.begin(), part.end(), place);
  return to_text(scatter(all, call));
}

}  // namespace horon

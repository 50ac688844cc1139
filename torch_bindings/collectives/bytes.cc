#include "horon/torch_bindings/collectives/bytes.h"

#include <cstring>
#include <iterator>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/collectives.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon {
namespace {

at::Tensor to_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
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
  const auto send = [&](at::Tensor& tensor, const char* part) {
    broadcast_(
        tensor,
        {.name = name.get() + part, .root = options.root, .process_set = options.process_set});
  };
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  send(size, ".size");
  const int64_t count = *size.const_data_ptr<int64_t>();
  at::Tensor content = rank() == options.root ? to_tensor(bytes) : at::empty({count}, at::kByte);
  send(content, ".bytes");
  return to_text(content);
}

std::vector<std::string> allgather_bytes(const std::string& bytes, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const torch_detail::BlockingCallName name = name_of(options, "allgather_bytes");
  return divide(
      allgather_async(to_tensor(bytes), {.name = name.get(), .process_set = options.process_set}));
}

std::vector<std::string> gather_bytes(const std::string& bytes, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const torch_detail::BlockingCallName name = name_of(options, "gather_bytes");
  const Handle handle =
      gather_async(to_tensor(bytes),
                   {.name = name.get(), .root = options.root, .process_set = options.process_set});
  handle.wait();
  return rank() == options.root ? divide(handle) : std::vector<std::string>();
}

std::string scatter_bytes(const std::vector<std::string>& parts, const ObjectOptions& options) {
  const torch_detail::PlainMode plain;
  const ProcessSet& set = options.process_set;
  const torch_detail::BlockingCallName name = name_of(options, "scatter_bytes");
  ScatterOptions call{.name = name.get(), .root = options.root};
  call.process_set = set;
  if (rank() != options.root) return to_text(scatter(to_tensor({}), call));
  if (std::ssize(parts) != set.size()) {
    torch_detail::refuse_call(
        call.name, set,
        core::concat("\"", call.name, "\": the root, rank ", options.root, ", gave ", parts.size(),
                     " parts for ", set.size(), " ranks; give one for each rank, in rank order"));
  }
  std::string all;
  for (const std::string& part : parts) {
    all += part;
    call.splits.push_back(std::ssize(part));
  }
  return to_text(scatter(to_tensor(all), call));
}

}  // namespace horon

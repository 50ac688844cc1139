#include "horon/torch_bindings/manifest.h"

#include <cstring>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "horon/core/base/text.h"
#include "horon/ops/session.h"
#include "horon/torch_bindings/collectives.h"

namespace horon::torch_detail {
namespace {

using core::concat;

at::Tensor to_tensor(const std::string& bytes) {
  at::Tensor tensor = at::empty({static_cast<int64_t>(bytes.size())}, at::kByte);
  if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

std::string to_text(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.numel())};
}

// FNV-1a, 64 bits. The length of each line goes in as well, so that lines can't flow into one
// another.
uint64_t hash_lines(const std::vector<std::string>& lines) {
  uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001b3; };
  for (const std::string& line : lines) {
    for (const char c : line) add(static_cast<unsigned char>(c));
    for (size_t rest = line.size(), i = 0; i < sizeof(rest); ++i, rest >>= 8) add(rest & 0xff);
  }
  return hash;
}

bool all_equal(const std::string& name, uint64_t hash) {
  at::Tensor own = at::empty({1}, at::kLong);
  *own.mutable_data_ptr<int64_t>() = static_cast<int64_t>(hash);
  const at::Tensor hashes = allgather(own, {.name = name});
  const int64_t* first = hashes.const_data_ptr<int64_t>();
  for (int64_t i = 1; i < hashes.numel(); ++i) {
    if (first[i] != first[0]) return false;
  }
  return true;
}

// What this rank says otherwise than the root; empty if nothing.
std::string first_differing_line(const std::vector<std::string>& own,
                                 const std::string& all_of_root, int root) {
  std::istringstream lines(all_of_root);
  const auto quoted = [](bool there, const std::string& line) {
    return there ? concat("'", line, "'") : std::string("nothing more");
  };
  for (size_t i = 0;; ++i) {
    std::string of_root;
    const bool root_has = static_cast<bool>(std::getline(lines, of_root));
    const bool own_has = i < own.size();
    if (!root_has && !own_has) return {};
    if (root_has && own_has && own[i] == of_root) continue;
    return concat("rank ", rank(), " has ", quoted(own_has, own_has ? own[i] : of_root),
                  " where rank ", root, " has ", quoted(root_has, of_root));
  }
}

}  // namespace

std::string broadcast_bytes(const std::string& name, const std::string& bytes, int root) {
  at::Tensor size = at::empty({1}, at::kLong);
  *size.mutable_data_ptr<int64_t>() = static_cast<int64_t>(bytes.size());
  broadcast_(size, {.name = name + ".size", .root = root});
  const int64_t count = *size.const_data_ptr<int64_t>();
  at::Tensor content = rank() == root ? to_tensor(bytes) : at::empty({count}, at::kByte);
  broadcast_(content, {.name = name + ".bytes", .root = root});
  return to_text(content);
}

void throw_together(ErrorCode code, const std::string& call, const std::string& own_error) {
  const std::string own = own_error.empty() ? own_error : concat(call, ": ", own_error, '\0');
  const std::string all = to_text(allgather(to_tensor(own), {.name = call + ".errors"}));
  if (!all.empty()) throw Error(code, all.substr(0, all.find('\0')));
}

void require_same_lines(const std::string& call, const std::vector<std::string>& lines, int root) {
  if (all_equal(call + ".agree", hash_lines(lines))) return;
  std::string joined;
  for (const std::string& line : lines) joined += line + '\n';
  const std::string of_root = broadcast_bytes(call + ".manifest", joined, root);
  throw_together(ErrorCode::Mismatch, call, first_differing_line(lines, of_root, root));
}

}  // namespace horon::torch_detail

#include "horon/core/execution/op_table.h"

#include <algorithm>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

bool has_prefix(const CollectiveOp& op, const std::string& prefix) {
  return op.name().substr(0, prefix.size()) == prefix;
}

// Whether the op runs collectives of this kind on some device with some reduction.
bool is_for(const CollectiveOp& op, CollectiveKind kind) {
  for (size_t device = 0; device < kDeviceKindCount; ++device) {
    for (const ReduceOp reduce_op : {ReduceOp::Sum, ReduceOp::Adasum}) {
      BatchFacts facts;
      facts.kind = kind;
      facts.device = static_cast<DeviceKind>(device);
      facts.reduce_op = reduce_op;
      if (op.refusal(facts).empty()) return true;
    }
  }
  return false;
}

}  // namespace

OpTable::OpTable(std::vector<std::unique_ptr<CollectiveOp>> ops, const std::string& allreduce,
                 const std::string& owner)
    : ops_(std::move(ops)) {
  if (allreduce == "auto") return;
  allreduce_prefix_ = allreduce + "_allreduce";
  bool any = false;
  for (size_t kind = 0; kind < restricted_.size(); ++kind) {
    BatchFacts facts;
    facts.device = static_cast<DeviceKind>(kind);
    const auto fits = [&](const auto& op) { return op->refusal(facts).empty(); };
    const bool is_reached = std::any_of(ops_.begin(), ops_.end(), [&](const auto& op) {
      return fits(op) && !op->works_in_host_copies();
    });
    restricted_[kind] = std::any_of(ops_.begin(), ops_.end(), [&](const auto& op) {
      return has_prefix(*op, allreduce_prefix_) && fits(op) &&
             !(is_reached && op->works_in_host_copies());
    });
    any = any || restricted_[kind];
  }
  if (any) return;
  throw Error(ErrorCode::Config,
              concat("HORON_ALLREDUCE=", allreduce, ": ", owner,
                     " has no such allreduce (\"shm\" needs all ranks on one host, \"hier\" ranks "
                     "on several hosts, and those of a host must be able to map each other's "
                     "memory); \"auto\" chooses one that this job has"));
}

std::string OpTable::refusal(const CollectiveOp& op, const BatchFacts& facts) const {
  const std::string why = op.refusal(facts);
  if (!why.empty() || facts.kind != CollectiveKind::Allreduce ||
      facts.reduce_op == ReduceOp::Adasum ||  // there is one way to make it
      !restricted_[static_cast<size_t>(facts.device)]) {
    return why;
  }
  return has_prefix(op, allreduce_prefix_) ? "" : "HORON_ALLREDUCE asks for another one";
}

CollectiveOp* OpTable::find(const BatchFacts& facts) const {
  for (const auto& op : ops_) {
    if (refusal(*op, facts).empty()) return op.get();
  }
  return nullptr;
}

CollectiveOp& OpTable::select(const BatchFacts& facts) const {
  if (CollectiveOp* const found = find(facts)) return *found;
  throw Error(ErrorCode::Config, why_none(facts));
}

bool OpTable::can_run(const BatchFacts& facts) const { return find(facts) != nullptr; }

std::string OpTable::why_none(const BatchFacts& facts) const {
  const bool any = std::any_of(ops_.begin(), ops_.end(),
                               [&](const auto& op) { return is_for(*op, facts.kind); });
  std::string reasons;
  for (const auto& op : ops_) {
    if (any && !is_for(*op, facts.kind)) continue;
    reasons += concat("\n  ", op->name(), ": no, ", refusal(*op, facts));
  }
  return concat("no op of this job can run ", to_string(facts.kind), " on ", to_string(facts.dtype),
                " in ", to_string(facts.device), " memory",
                facts.captured ? " that is captured in a CUDA graph:" : ":", reasons);
}

void OpTable::abort() noexcept {
  for (const auto& op : ops_) op->abort();
}

void OpTable::finish_abort(std::chrono::steady_clock::time_point limit) noexcept {
  for (const auto& op : ops_) op->finish_abort(limit);
}

std::vector<std::string> OpTable::explain(const BatchFacts& facts) const {
  std::vector<std::string> lines;
  bool chosen = false;
  for (const auto& op : ops_) {
    const std::string why = refusal(*op, facts);
    const std::string verdict = !why.empty() ? concat("no, ", why)
                                : chosen     ? std::string("fits, but an earlier one is chosen")
                                             : std::string("chosen");
    chosen = chosen || why.empty();
    lines.push_back(concat(op->name(), ": ", verdict));
  }
  return lines;
}

}  // namespace horon::core

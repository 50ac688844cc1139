#include "horon/torch_bindings/gradients/adasum_optimizer.h"

#include <exception>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/call_names.h"

namespace horon::torch_detail {
namespace {

using core::concat;

void refuse_complex(const AdasumSteps::Groups& groups) {
  size_t number = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.is_complex()) {
        throw Error(ErrorCode::InvalidArgument,
                    concat("AdasumOptimizer: parameter ", number, " is complex, and Adasum is for ",
                           "floating dtypes; give complex ones to an optimizer of their own"));
      }
      ++number;
    }
  }
}

}  // namespace

AdasumSteps::AdasumSteps(AdasumOptimizerOptions options, const Groups& groups)
    : options_(std::move(options)) {
  if (options_.compression == Compression::Int8) {
    throw Error(
        ErrorCode::InvalidArgument,
        "AdasumOptimizer: compression is Int8, but steps can be rounded to 16 bits at most; "
        "set it to Float16, BFloat16 or None");
  }
  refuse_complex(groups);
}

void AdasumSteps::begin(const Groups& groups) {
  moved_.clear();
  refuse_complex(groups);  // of groups that were added
  if (!options_.process_set.includes_me()) return;
  const at::NoGradGuard no_grad;
  std::unordered_set<const void*> seen;  // tied weights stand there several times
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.is_floating_point()) continue;
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
      moved_.push_back({parameter.detach(), parameter.detach().clone()});
    }
  }
}

std::string AdasumSteps::name_of(size_t number) const { return concat(options_.name, ".", number); }

// The move is computed and reduced in the parameter's own memory.
Handle AdasumSteps::start(const Moved& moved, size_t number) const {
  moved.parameter.sub_(moved.start);
  const bool narrows = moved.parameter.scalar_type() == at::kFloat;
  return allreduce_async_(moved.parameter,
                          {.name = name_of(number),
                           .op = ReduceOp::Adasum,
                           .process_set = options_.process_set,
                           .compression = narrows ? options_.compression : Compression::None});
}

void AdasumSteps::put_back(const std::vector<Moved>& moved) {
  const at::NoGradGuard no_grad;
  for (const Moved& each : moved) each.parameter.copy_(each.start);
}

void AdasumSteps::undo() {
  const std::vector<Moved> moved = std::exchange(moved_, {});
  put_back(moved);
  std::vector<std::string> names;
  for (size_t i = 0; i < moved.size(); ++i) names.push_back(name_of(i));
  try {
    refuse_calls(names, options_.process_set,
                 concat("step() on rank ", rank(), ": ", core::current_error().what()));
  } catch (const Error&) {  // this rank throws what has happened here
  }
}

void AdasumSteps::end() {
  const std::vector<Moved> moved = std::move(moved_);
  moved_.clear();
  const at::NoGradGuard no_grad;
  std::vector<Handle> handles;
  std::exception_ptr fault;  // the first one
  const auto note = [&](const auto& call) {
    try {
      call();
    } catch (...) {
      if (fault == nullptr) fault = std::current_exception();
    }
  };
  // Starts all: the other ranks also wait for those after one that this rank refuses.
  for (size_t i = 0; i < moved.size(); ++i) note([&] { handles.push_back(start(moved[i], i)); });
  // Waits for all: one that still runs would write to a parameter that has been put back.
  for (const Handle& handle : handles) note([&] { (void)handle.wait(); });
  if (fault != nullptr) {
    put_back(moved);
    std::rethrow_exception(fault);
  }
  for (const Moved& each : moved) each.parameter.add_(each.start);
}

}  // namespace horon::torch_detail

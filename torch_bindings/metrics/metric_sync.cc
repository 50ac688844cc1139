#include "horon/torch_bindings/metrics/metric_sync.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include "horon/core/base/current_error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/collectives/call_names.h"
#include "horon/torch_bindings/collectives/pending_collective.h"
#include "horon/torch_bindings/tensors/plain_mode.h"

namespace horon::metrics {
namespace {

using core::concat;
using torch_detail::Into;
using torch_detail::PendingCollective;

constexpr double kExactMax = 9007199254740992.0;  // 2^53: up to here float64 has every integer
constexpr size_t kRemarkMax = 1000;

at::Tensor joined(const std::vector<at::Tensor>& parts) {
  return parts.empty() ? at::empty({0}, at::kDouble) : at::cat(parts);
}

std::string remark_of(const std::vector<MetricSync::Named>& metrics) {
  std::string text;
  for (const MetricSync::Named& named : metrics) {
    text += concat(text.empty() ? "" : "; ", named.name, named.name.empty() ? "" : ": ",
                   named.metric->description());
  }
  if (text.size() <= kRemarkMax) return text;
  return concat(text.substr(0, kRemarkMax), "... (hash ", core::hash_of(text), ")");
}

// Counts travel as float64 beside the sums: one tensor, one collective, and still exact.
at::Tensor pack_sums(const std::vector<MetricTotals>& totals) {
  std::vector<at::Tensor> parts;
  for (const MetricTotals& of_metric : totals) {
    parts.push_back(of_metric.sums);
    parts.push_back(of_metric.counts.to(at::kDouble));
  }
  return joined(parts);
}

void unpack_sums(const at::Tensor& flat, std::vector<MetricTotals>& totals) {
  int64_t begin = 0;
  const auto next = [&](int64_t length) {
    begin += length;
    return flat.narrow(0, begin - length, length);
  };
  for (MetricTotals& of_metric : totals) {
    of_metric.sums = next(of_metric.sums.numel());
    const at::Tensor counts = next(of_metric.counts.numel());
    if (counts.numel() > 0 && counts.max().item<double>() >= kExactMax) {
      throw Error(ErrorCode::Limit, "a metric has counted 2^53 samples, its limit; call reset()");
    }
    of_metric.counts = counts.to(at::kLong);
  }
}

// One rank's lists one after the other, after their lengths.
at::Tensor pack_lists(const std::vector<MetricTotals>& totals) {
  std::vector<double> lengths;
  std::vector<at::Tensor> parts{at::Tensor()};
  for (const MetricTotals& of_metric : totals) {
    for (const at::Tensor& list : of_metric.lists) {
      lengths.push_back(static_cast<double>(list.numel()));
      parts.push_back(list);
    }
  }
  parts.front() = at::tensor(lengths, at::kDouble);
  return joined(parts);
}

void unpack_lists(const at::Tensor& flat, const std::vector<int64_t>& from_ranks,
                  std::vector<MetricTotals>& totals) {
  std::vector<at::Tensor*> lists;
  for (MetricTotals& of_metric : totals) {
    for (at::Tensor& list : of_metric.lists) lists.push_back(&list);
  }
  std::vector<std::vector<at::Tensor>> parts(lists.size());
  int64_t begin = 0;
  for (const int64_t rows : from_ranks) {
    if (rows == 0) continue;  // of a rank that has joined
    const double* const lengths = flat.const_data_ptr<double>() + begin;
    int64_t at = begin + static_cast<int64_t>(lists.size());
    for (size_t i = 0; i < lists.size(); ++i) {
      const auto length = static_cast<int64_t>(lengths[i]);
      parts[i].push_back(flat.narrow(0, at, length));
      at += length;
    }
    begin += rows;
  }
  for (size_t i = 0; i < lists.size(); ++i) *lists[i] = joined(parts[i]);
}

at::Tensor result_of(PendingCollective& pending) {
  (void)pending.state().wait(std::nullopt);
  return pending.results().front();
}

class Call {
 public:
  Call(const std::vector<MetricSync::Named>& metrics, bool with_lists, const MetricOptions& options)
      : call_name_(options.name, "metrics", options.process_set.id()),
        with_lists_(with_lists),
        options_(options),
        remark_(remark_of(metrics)) {}

  // What fails on this rank alone makes the call fail by name on the others too. They wait for
  // lists if they have some, even if this rank has none.
  template <class Work>
  auto or_refuse(const Work& work) const {
    try {
      return work();
    } catch (...) {
      torch_detail::refuse_calls({name(), lists_name()}, options_.process_set, text_of_failure());
    }
  }

  // The result of the allreduce. If it fails, all ranks know; but a rank without lists does not
  // know whether others wait for its lists.
  at::Tensor sums_of(PendingCollective& sum) const {
    try {
      return result_of(sum);
    } catch (const Error&) {
      const ProcessSet& set = options_.process_set;
      if (!with_lists_ && is_initialized() && set.includes_me()) {
        ops::runtime().refuse(lists_name(), text_of_failure(), set.id());
      }
      throw;
    }
  }

  const std::string& name() const { return call_name_.get(); }
  std::string lists_name() const { return concat(name(), ".lists"); }

  std::shared_ptr<PendingCollective> start(CollectiveKind kind, std::string name,
                                           const at::Tensor& flat) const {
    auto pending =
        std::make_shared<PendingCollective>(kind, "metrics", std::move(name), options_.process_set);
    pending->remark = remark_;
    if (kind == CollectiveKind::Allreduce) {
      pending->spec.reduce_op = ReduceOp::Sum;
      pending->add(flat, Into::Same);
    } else {
      pending->add_rows(flat);
    }
    pending->submit(pending);
    return pending;
  }

  // " (on rank 2)": the ranks whose own samples are at fault. Collective. Empty if that can't be
  // known: the fault itself is told first of all.
  std::string text_of_faults(bool mine) const {
    const ProcessSet& set = options_.process_set;
    try {
      const std::vector<std::string> all = allgather_bytes(
          mine ? "1" : "0", {.name = concat(name(), ".faults"), .process_set = set});
      const std::vector<int> ranks = set.ranks();
      std::vector<int> at_fault;
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] == "1") at_fault.push_back(ranks[i]);
      }
      return at_fault.empty() ? "" : concat(" (on ", core::name_ranks(at_fault), ")");
    } catch (const Error&) {
      return "";
    }
  }

 private:
  // Within a catch block.
  std::string text_of_failure() const {
    return concat("\"", name(), "\": ", core::current_error().what());
  }

  const torch_detail::BlockingCallName call_name_;
  const bool with_lists_;
  const MetricOptions& options_;
  const std::string remark_;
};

}  // namespace

MetricTotals MetricSync::totals_of(const MetricState& state) {
  MetricTotals totals{state.sums.cpu(), state.counts.cpu(), {}};
  for (const std::vector<at::Tensor>& list : state.lists) {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : list) parts.push_back(part.to(at::kDouble));
    totals.lists.push_back(joined(parts));
  }
  return totals;
}

at::Tensor MetricSync::value_of(const Named& named, const MetricTotals& totals) {
  try {
    return named.metric->value_of(totals);
  } catch (const Error& error) {
    const std::string which =
        named.name.empty() ? named.metric->description() : concat("metric \"", named.name, "\"");
    throw Error(error.code(), concat(which, ": ", error.what()));
  }
}

std::vector<at::Tensor> MetricSync::compute(const std::vector<Named>& metrics,
                                            const MetricOptions& options) {
  if (metrics.empty()) return {};
  const torch_detail::PlainMode plain;
  const bool with_lists = std::ranges::any_of(
      metrics, [](const Named& named) { return !named.metric->state_.lists.empty(); });
  const Call call(metrics, with_lists, options);
  std::vector<MetricTotals> totals;
  at::Tensor packed_lists;
  const at::Tensor sums = call.or_refuse([&] {
    for (const Named& named : metrics) totals.push_back(totals_of(named.metric->state_));
    packed_lists = pack_lists(totals);
    return pack_sums(totals);
  });
  const std::shared_ptr<PendingCollective> sum =
      call.start(CollectiveKind::Allreduce, call.name(), sums);
  std::shared_ptr<PendingCollective> lists;
  if (with_lists) {
    lists = call.start(CollectiveKind::Allgather, call.lists_name(), packed_lists);
    // Both end before an error of one is thrown: whoever catches it finds both names free.
    (void)lists->state().wait(std::nullopt);
  }
  unpack_sums(call.sums_of(*sum), totals);
  if (lists) {
    const at::Tensor all = result_of(*lists);
    unpack_lists(all, lists->received_rows().front(), totals);
  }
  std::vector<at::Tensor> values;
  for (size_t i = 0; i < metrics.size(); ++i) {
    try {
      values.push_back(value_of(metrics[i], totals[i]));
    } catch (const Error& error) {  // on all ranks, since all have the same totals
      throw Error(error.code(),
                  concat(error.what(), call.text_of_faults(fails_alone(*metrics[i].metric))));
    }
  }
  return values;
}

bool MetricSync::fails_alone(const Metric& metric) {
  try {
    (void)metric.value_of(totals_of(metric.state_));
  } catch (const Error&) {
    return true;
  } catch (...) {  // not the samples' fault, but the other ranks wait for the answer
  }
  return false;
}

}  // namespace horon::metrics

// Autotuning while training goes on (HORON_AUTOTUNE). The lowest rank of the process set decides
// (bucket_tuner.h). It tells the others in the agreement of a round (round_agreement.h), for which
// it asks by its flags as for anything else, so that it costs a small allreduce in that round and
// nothing in others. All ranks make the new buckets before their next round, where they also look
// for changed parameters.
#include <utility>

#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/core/bootstrap/topology.h"
#include "horon/ops/session/running_job.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"
#include "horon/torch_bindings/tensors/tensor_memory.h"

namespace horon {

using namespace torch_detail;

namespace {

std::string facts_of(const std::vector<GradientLayout>& layouts, const GradientSettings& settings) {
  int64_t elements = 0;
  for (const GradientLayout& layout : layouts) elements += layout.elements();
  const core::Topology members =
      core::restrict_to_members(ops::runtime().topology(), settings.ranks);
  return core::concat(layouts.size(), " gradients of ", elements, " elements (", settings.text(),
                      "), ", settings.ranks.size(), " ranks on ", members.host_count(),
                      members.host_count() == 1 ? " host" : " hosts");
}

// Of all gradients as one entry; buckets are shorter.
core::PieceSizes pieces_of(const std::vector<GradientLayout>& layouts,
                           const GradientSettings& settings) {
  if (settings.shard_gradients) return {};  // a reducescatter takes no such wish
  int64_t reals = 0;
  for (const GradientLayout& layout : layouts) reals += layout.reals();
  const GradientLayout& first = layouts.front();
  core::EntrySpec spec = gradient_spec(settings, data_type_of(first.real_dtype(), first.name));
  spec.parts = {{"", {reals}}};
  return ops::runtime().piece_sizes(settings.set, spec);
}

}  // namespace

// Between two steps, on the rank that decides.
void GradientReducer::Impl::tune() {
  if (!is_initialized()) return;
  if (!tuner_) {
    const BucketBytes start = settings_of(options_, settings_.owners).bytes;
    const bool at_start = next_bytes_.value_or(settings_.bytes) == start;
    if (has_functions() && at_start) return wait_until_functions_are_gone();
    waits_for_functions_ = false;
    TuningSubject subject;
    subject.name = name_;
    subject.facts = facts_of(layouts_, settings_);
    if (settings_.set != 0) subject.file_suffix = core::concat(".set", settings_.set);
    for (const GradientLayout& layout : layouts_) subject.gradient_bytes += layout.bytes();
    subject.start = start;
    subject.in_use = next_bytes_.value_or(settings_.bytes);
    if (!layouts_.empty()) subject.pieces = pieces_of(layouts_, settings_);
    subject.plan = [&](const BucketBytes& bytes) {
      return plan_buckets(layouts_, bytes, groups(), slot_order_);
    };
    tuner_.emplace(subject, ops::runtime().config());
  }
  if (has_functions()) tuner_->give_up("before_bucket() or after_bucket() may need these buckets");
  if (!memory_of_graphs_.empty()) tuner_->give_up("captured CUDA graphs write to these buckets");
  tuner_->end_step();
  wished_bytes_ = tuner_->wish();
  if (!tuner_->finished()) return;
  tuner_.reset();
  tunes_ = false;
}

void GradientReducer::Impl::wait_until_functions_are_gone() {
  if (std::exchange(waits_for_functions_, true)) return;
  core::log(
      core::LogLevel::Info,
      core::concat("autotune \"", name_, "\": before_bucket() or after_bucket() may need these ",
                   "buckets; the search begins when both are unset"));
}

// In the agreement of a round, on all ranks that take part. A rank that has joined would come back
// with other buckets, so nothing changes before all take part.
void GradientReducer::Impl::hear_of_bytes() {
  const bool all = totals_.participants == static_cast<int>(settings_.ranks.size());
  if (all) next_bytes_ = totals_.bytes;
  if (!wished_bytes_) return;
  wished_bytes_.reset();
  if (all) {
    tuner_->all_agreed();
  } else {
    tuner_->some_absent();
  }
}

// Steps have changed, so what was measured counts no more.
void GradientReducer::Impl::restart_tuning() {
  tuner_.reset();
  wished_bytes_.reset();
}

}  // namespace horon

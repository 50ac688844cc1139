#include "horon/torch_bindings/gradients/gradient_reducer.h"

#include <utility>

#include "horon/ops/session/session.h"
#include "horon/torch_bindings/gradients/reducer_impl.h"

namespace horon {
namespace {

const GradientReducerOptions& without_step(const GradientReducerOptions& options) {
  if (options.grad_scale == 1 && !options.skip_nonfinite && !options.clip_grad_norm &&
      !options.clip_grad_value && !options.shard_optimizer_state && !options.shard_gradients) {
    return options;
  }
  throw Error(ErrorCode::InvalidArgument,
              "grad_scale, skip_nonfinite, clip_grad_norm, clip_grad_value, "
              "shard_optimizer_state and shard_gradients are options of DistributedOptimizer; a "
              "GradientReducer makes no steps");
}

}  // namespace

GradientReducer::GradientReducer(const NamedTensors& parameters, GradientReducerOptions options)
    : GradientReducer(ForOptimizer(), parameters, without_step(options), nullptr) {}

GradientReducer::GradientReducer(ForOptimizer /*tag*/, const NamedTensors& parameters,
                                 const GradientReducerOptions& options,
                                 std::shared_ptr<const torch_detail::ShardOwners> owners)
    : impl_(std::make_unique<Impl>(parameters, options, std::move(owners))) {}

GradientReducer::GradientReducer(const torch::nn::Module& module, GradientReducerOptions options)
    : GradientReducer(NamedTensors::parameters_of(module), std::move(options)) {}

GradientReducer::~GradientReducer() = default;

void GradientReducer::synchronize(Passes passes) { impl_->finish_step(passes); }

void GradientReducer::set_backward_passes_per_step(int passes) { impl_->set_passes(passes); }

void GradientReducer::add_parameters(const NamedTensors& parameters) {
  impl_->add_parameters(parameters);
}

void GradientReducer::add_parameters(const torch::nn::Module& module) {
  impl_->add_parameters(NamedTensors::parameters_of(module));
}

void GradientReducer::before_zeroing_in_place() { impl_->before_zeroing_in_place(); }

void GradientReducer::count_gradients_as_new() { impl_->count_gradients_as_new(); }

std::string GradientReducer::unsynchronized_parameter() const {
  return impl_->unsynchronized_parameter();
}

void GradientReducer::set_weight(double weight) { impl_->set_weight(weight); }

double GradientReducer::reduce_number(double value) { return *impl_->reduce_number(value); }

std::optional<double> GradientReducer::reduce_number_if_any(const std::optional<double>& value) {
  return impl_->reduce_number(value);
}

void GradientReducer::refuse_number(const std::string& why) { impl_->refuse_number(why); }

int64_t GradientReducer::begin_evaluation() {
  impl_->begin_evaluation();
  return statistics().steps;
}

bool GradientReducer::leave_evaluation(int64_t rounds) {
  return impl_->leave_evaluation(/*has_reduced=*/statistics().steps > rounds);
}

const GradientReducerOptions& GradientReducer::options() const { return impl_->options(); }

GradientReducer::NoSync::NoSync(std::shared_ptr<std::atomic<int>> depth)
    : depth_(std::move(depth)) {
  ++*depth_;
}

GradientReducer::NoSync::~NoSync() {
  if (depth_ != nullptr) --*depth_;  // null: moved from
}

GradientReducer::NoSync GradientReducer::no_sync() { return NoSync(impl_->no_sync_depth()); }

void GradientReducer::before_bucket(std::function<void(const BucketView&)> function) {
  if (function) impl_->use_buckets();
  impl_->before_bucket = std::move(function);
}

void GradientReducer::after_bucket(std::function<void(const BucketView&)> function) {
  if (function) {
    impl_->require_whole_gradients("after_bucket()");
    impl_->use_buckets();
  }
  impl_->after_bucket = std::move(function);
}

GradientStatistics GradientReducer::statistics() const { return impl_->statistics(); }

double GradientReducer::exposed_wait_seconds() const { return impl_->statistics().wait_seconds; }

const std::string& GradientReducer::name() const { return impl_->name(); }

}  // namespace horon

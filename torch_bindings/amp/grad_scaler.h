// Loss scaling for training in float16, whose small gradients would be 0 without it.
//
//   horon::amp::GradScaler scaler;
//   ...
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);          // left out on all ranks if a gradient is NaN or infinite
//   scaler.update();
//
// To see or clip gradients in between, divide them by the scale first:
//
//   scaler.scale(loss).backward();
//   scaler.unscale_(optimizer);
//   torch::nn::utils::clip_grad_norm_(model->parameters(), 1.0);
//   scaler.step(optimizer);
//   scaler.update();
//
// bfloat16 has the range of float32 and needs no scaler.
//
// The ranks agree without communication: gradients are checked when they have been reduced, and
// then they have the same bits on every rank, whatever the reduction and the compression. So all
// ranks leave the same steps out and have the same scale, if they began with the same. A NaN or an
// infinity of one rank is in every Sum, Average and Product that it goes into; a rank of weight 0
// has no gradient that counts; and Min and Max may drop an infinity, on all ranks alike. Where a
// rank goes by its own gradients (outside a process set, or with an AdasumOptimizer), it has a
// scale of its own. A rank that leaves its step of an AdasumOptimizer out moves by the other ranks'
// steps.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}
namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace horon {

template <class Opt>
class DistributedOptimizer;
class AdaScale;
namespace torch_detail {
class ScaledSteps;
}

namespace amp {

// As in PyTorch.
struct GradScalerOptions {
  double init_scale = 65536;       // above 0
  double growth_factor = 2;        // above 1
  double backoff_factor = 0.5;     // between 0 and 1
  int64_t growth_interval = 2000;  // steps without NaN or infinity until the scale grows
  bool enabled = true;             // false: losses and gradients stay as they are
};

// The same as torch.amp.GradScaler of Python. The scale is a float32 that the host knows; the host
// waits for a GPU once in each step(), as PyTorch's does, to know whether to make it.
//
// An optimizer is any of LibTorch's or of the program's, plain or a DistributedOptimizer. The
// latter's step() divides, checks and clips (clip_grad_norm) in its own pass, the fused one where
// there is one; unscale_() takes a pass of its own. A plain optimizer's gradients are to be reduced
// before unscale_() and step(), as a GradientReducer has when backward() returns. With
// HORON_CHECK_FINITE, an infinite gradient is an error in backward(): give the optimizer
// {.skip_nonfinite = true}, which overrules that knob for gradients (but not for what the backward
// pass of a SyncBatchNorm adds up).
//
// The same calls on all ranks; one thread at a time. Wrong order of calls throws
// Error(InvalidArgument), as said there, and changes nothing.
class GradScaler {
 public:
  using Optimizer = ::torch::optim::Optimizer;

  // Throws Error(InvalidArgument) that names an option.
  explicit GradScaler(const GradScalerOptions& options = {});

  // The loss times the scale. Throws Error(InvalidArgument) in the capture of a CUDA graph, which
  // would keep this scale for ever.
  at::Tensor scale(const at::Tensor& loss) const;

  // Divides each .grad by the scale, once, and notes whether one is not finite. With a
  // DistributedOptimizer it first reduces what backward() has not reduced (collective), and throws
  // as its step() does if passes of backward_passes_per_step are missing. At most once between
  // update() calls, and before step(); not with float16 parameters, whose gradients it would take
  // out of range.
  void unscale_(Optimizer& optimizer);
  void unscale_(DistributedOptimizer<Optimizer>& optimizer);

  // Makes the optimizer's step with gradients divided by the scale. If one is not finite, leaves
  // the step out and returns false. Once between update() calls. Throws what the optimizer's step()
  // throws.
  bool step(Optimizer& optimizer);
  bool step(DistributedOptimizer<Optimizer>& optimizer);
  // The same with AdaScale::step(). Its means are those of gradients without the scale, and a step
  // that is left out is not in them. For unscale_() give its optimizer.
  bool step(AdaScale& ada_scale);

  // Ends a step of all optimizers: the scale shrinks if one has left its step out, and grows after
  // growth_interval steps without that. Throws Error(InvalidArgument) without step() or unscale_()
  // before it.
  void update();
  // Ends a step and sets the scale: above 0. growth_tracker() stays as it is.
  void update(double new_scale);

  bool is_enabled() const { return options_.enabled; }
  double get_scale() const { return options_.enabled ? static_cast<double>(scale_) : 1; }
  // Steps without NaN or infinity since the scale has changed.
  int64_t growth_tracker() const { return growth_tracker_; }
  const GradScalerOptions& options() const { return options_; }

  // Scale, tracker and options but enabled; for torch::save() and torch::load(). Between update()
  // and the next step. load() throws Error(InvalidArgument), having changed nothing, for another
  // archive.
  void save(::torch::serialize::OutputArchive& archive) const;
  void load(::torch::serialize::InputArchive& archive);

 private:
  // What has been done to the gradients of an optimizer since update().
  enum class Stage : uint8_t { Ready, Unscaled, Stepped };
  struct Record {
    Stage stage = Stage::Ready;
    bool found = false;                     // a gradient that is not finite
    std::vector<at::Tensor> found_on = {};  // the same, as a number above 0 on each device
  };

  void unscale(Optimizer& optimizer, torch_detail::ScaledSteps* distributed);
  // Calls `make_step`, which makes the step of `inner`, or leaves the step out, by `distributed` if
  // it is not null.
  template <class MakeStep>
  bool step_by(const MakeStep& make_step, Optimizer& inner, torch_detail::ScaledSteps* distributed);
  Record& record_for_step(const Optimizer& optimizer);
  static bool found_in(Record& record);

  GradScalerOptions options_;
  float scale_;
  int64_t growth_tracker_ = 0;
  std::unordered_map<const void*, Record> records_;
};

::torch::serialize::OutputArchive& operator<<(::torch::serialize::OutputArchive& archive,
                                              const GradScaler& scaler);
::torch::serialize::InputArchive& operator>>(::torch::serialize::InputArchive& archive,
                                             GradScaler& scaler);

}  // namespace amp
}  // namespace horon

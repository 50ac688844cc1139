// Gradients that travel as matrices of low rank, for networks that are slow beside a step: PowerSGD
// (Vogels, Karimireddy, Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019, arXiv 1905.13727).
//
//   torch::optim::SGD plain(model->parameters(), 0.01);   // LibTorch's own: a step reduces nothing
//   horon::broadcast_parameters(*model, 0);
//   horon::PowerSgd power_sgd(*model, {.matrix_rank = 2});
//   for (int step = 0; step < steps; ++step) {
//     ...
//     loss.backward();
//     power_sgd.reduce();
//     plain.step();
//   }
//
// A gradient of n rows and m columns (of a convolution: all but the first dimension) travels as
// matrix_rank * (n + m) numbers, in two allreduces, instead of n * m. What that leaves out is kept,
// and added to this rank's next gradient. Vectors, and matrices that this would hardly shorten, are
// averaged as they are. Matrix products take the place of bytes, so it pays where the network takes
// longer than the products; nothing overlaps with backward(). It has run on CPUs so far.
//
// With an amp::GradScaler reduce() comes before unscale_(), so that all ranks see the same
// gradients. What was left out keeps the scale of its step.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "horon/ops/session/process_set.h"
#include "horon/torch_bindings/collectives/rank_agreement.h"
#include "horon/torch_bindings/tensors/named_tensors.h"

namespace torch::serialize {
class InputArchive;
class OutputArchive;
}  // namespace torch::serialize

namespace horon {

// The same on all ranks of the process set.
struct PowerSgdOptions {
  int64_t matrix_rank = 1;
  // The first start_step calls of reduce() average gradients as they are, as these change fast.
  int64_t start_step = 1000;
  // Matrices that become shorter by less than this factor are averaged as they are.
  double min_compression_rate = 2;
  // What a rank's approximation leaves out is added to its next gradient.
  bool error_feedback = true;
  uint64_t seed = 0;  // of the first approximation
  ProcessSet process_set = {};
  std::string name = "power_sgd";  // of its collectives; two at a time need two names
};

class PowerSgd {
 public:
  // Of a module: its parameters. Those that require no gradient now are left out; tied ones count
  // once. Keeps, of each matrix that is compressed, what was left out of it (in float32, or
  // float64) and m * matrix_rank numbers. Local. Throws Error(InvalidArgument) naming the option,
  // or a parameter that collectives don't take or that shares its name; Error(NotInitialized).
  explicit PowerSgd(const NamedTensors& parameters, PowerSgdOptions options = {});
  explicit PowerSgd(const torch::nn::Module& module, PowerSgdOptions options = {});

  // After backward(), once in each step: every .grad becomes (about) the average over the ranks.
  // Collective, blocks. A parameter without a gradient on some ranks counts as zeros there; one
  // that has none on all keeps none. Sparse gradients become dense. If any rank has a NaN or Inf,
  // gradients are averaged as they are in this step, so that all ranks see it and nothing of it is
  // kept. A rank that is alone keeps its gradients, and ranks that have joined have no part; ranks
  // that have made unlike numbers of steps compress as soon as one of them does.
  // Throws Error(Mismatch) on all ranks, before anything has changed, if parameters (also their
  // order) or options differ; Error(InvalidArgument) on all ranks if a gradient of one has another
  // shape than its parameter had, or can't be written. After another Error what was left out before
  // is lost, and gradients are undefined.
  void reduce();

  int64_t steps() const { return steps_; }
  // Elements of all gradients over the numbers that travel from start_step on.
  double compression_rate() const;

  // Between two calls of reduce(): steps(), what the next approximation begins with, and what was
  // left out on this rank. For Checkpoints::add_of_rank(). After load() the run continues with the
  // same bits. load_resharded(), from what all ranks of a job of another number have saved, gives
  // each rank the mean of what was left out, so that nothing of it is lost. Both throw
  // Error(InvalidArgument), and nothing has changed, if an archive is of other matrices or of
  // another matrix_rank. Other options may change.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);
  void load_resharded(std::vector<torch::serialize::InputArchive>& ranks);

  PowerSgd(const PowerSgd&) = delete;
  PowerSgd& operator=(const PowerSgd&) = delete;

 private:
  struct Part {
    std::string name;
    at::Tensor parameter;
    // Of a matrix that is compressed; else undefined.
    at::Tensor left_out;  // [n, m], and within reduce() the matrix to be sent
    at::Tensor columns;   // [n, matrix_rank] in columns_
    at::Tensor rows;      // [m, matrix_rank] in rows_, kept for the next step

    bool is_compressed() const { return left_out.defined(); }
  };

  void add(const std::string& name, const at::Tensor& parameter);
  void take_memory();
  std::vector<torch_detail::Fact> facts_of_all() const;
  void check_gradients() const;
  // What the ranks agree on before a gradient travels.
  struct Said {
    std::vector<bool> present;  // the gradients that some rank has
    bool compresses = false;
  };
  Said agree() const;
  struct Kept {
    std::string key, what;
    at::Tensor tensor;
  };
  struct Saved {
    int64_t steps = 0;
    std::vector<at::Tensor> tensors;  // as kept() has them
  };
  std::vector<Kept> kept() const;
  Saved read(torch::serialize::InputArchive& archive) const;
  void go_on_from(std::vector<Saved> ranks);
  void begin_rows_anew(size_t part);
  static void put_together(Part& part);
  void approximate(const std::vector<bool>& present);
  void average(const std::vector<bool>& present, bool compresses);

  PowerSgdOptions options_;
  bool member_;
  std::vector<Part> parts_;
  std::vector<torch_detail::Fact> facts_;  // that the ranks compare
  at::Tensor columns_, rows_;  // of all matrices that are compressed, one behind the other
  int64_t steps_ = 0;
};

}  // namespace horon

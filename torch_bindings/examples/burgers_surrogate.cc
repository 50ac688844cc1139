// A simulation that owns MPI, and trains a network in its midst:
//
//   mpirun -np 4 burgers_surrogate
//
// It solves Burgers' equation u_t + (u^2 / 2)_x = viscosity * u_xx on a ring of cells, which the
// ranks of a communicator of its own share out; neighbours exchange halos by MPI. A network learns
// what 8 of its small steps do to a cell, from the cells around it, and then goes on in their
// place. Horon is there from init() to shutdown() in train(); MPI is the simulation's before,
// meanwhile and after. Ranks may have different numbers of cells: set_weight() makes their
// gradients that of the mean over all cells.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <vector>

#include <mpi.h>
#include <torch/torch.h>

#include "training_support.h"
#include <horon/horon.h>

namespace {

struct Settings {
  int64_t cells = 512;  // of all ranks
  int64_t flows = 8;    // simulated to learn from
  int64_t steps = 600;  // of the optimizer
  double lr = 1e-2;
  uint64_t seed = 1;
  int64_t large_steps = 40;  // of the test
  int64_t log_every = 100;
};

constexpr int kSmallSteps = 8;  // in a large one
using Cells = std::vector<double>;

// The flow on this rank's part of the ring. Its length is 1, speeds are about 1.
class Burgers {
 public:
  Burgers(MPI_Comm ring, int64_t cells) : ring_(ring), cells_(cells) {
    MPI_Comm_rank(ring, &rank_);
    MPI_Comm_size(ring, &ranks_);
    MPI_Cart_shift(ring, 0, 1, &left_, &right_);
    first_ = cells * rank_ / ranks_;
    u.resize(static_cast<size_t>(cells * (rank_ + 1) / ranks_ - first_));
  }

  // Waves of random height and place; the same for any number of ranks.
  void start(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::fill(u.begin(), u.end(), 0.0);
    for (int wave = 1; wave <= 3; ++wave) {
      const double height = 0.2 + 0.4 * static_cast<double>(random() >> 11) / 9007199254740992.0;
      const double place = static_cast<double>(random() >> 11) / 9007199254740992.0;
      for (size_t i = 0; i < u.size(); ++i) {
        const double x = (static_cast<double>(first_) + static_cast<double>(i) + 0.5) /
                         static_cast<double>(cells_);
        u[i] += height * std::sin(2 * M_PI * (wave * x + place));
      }
    }
  }

  void small_step() {
    const double width = 1 / static_cast<double>(cells_), time = 0.25 * width;
    const double viscosity = 0.4 * width;
    const Cells wide = with_halo(1);
    // From cell i to the next: local Lax-Friedrichs, and diffusion.
    const auto flux = [&](size_t i) {
      const double a = wide[i], b = wide[i + 1];
      return (a * a + b * b) / 4 - std::max(std::abs(a), std::abs(b)) * (b - a) / 2 -
             viscosity * (b - a) / width;
    };
    for (size_t i = 0; i < u.size(); ++i) u[i] -= time / width * (flux(i + 1) - flux(i));
  }

  // This rank's cells between `width` cells of each neighbour.
  Cells with_halo(int width) const {
    const size_t halo = static_cast<size_t>(width), own = u.size();
    Cells wide(own + 2 * halo);
    std::copy(u.begin(), u.end(), wide.begin() + width);
    MPI_Sendrecv(wide.data() + own, width, MPI_DOUBLE, right_, 0, wide.data(), width, MPI_DOUBLE,
                 left_, 0, ring_, MPI_STATUS_IGNORE);
    MPI_Sendrecv(wide.data() + halo, width, MPI_DOUBLE, left_, 1, wide.data() + own + halo, width,
                 MPI_DOUBLE, right_, 1, ring_, MPI_STATUS_IGNORE);
    return wide;
  }

  // The norm of the difference to another flow, as a share of that one's, over all ranks.
  double distance_from(const Cells& other) const {
    double sums[2] = {0, 0};
    for (size_t i = 0; i < u.size(); ++i) {
      sums[0] += (u[i] - other[i]) * (u[i] - other[i]);
      sums[1] += other[i] * other[i];
    }
    MPI_Allreduce(MPI_IN_PLACE, sums, 2, MPI_DOUBLE, MPI_SUM, ring_);
    return std::sqrt(sums[0] / sums[1]);
  }

  bool speaks() const { return rank_ == 0; }

  Cells u;

 private:
  MPI_Comm ring_;
  int64_t cells_, first_;
  int rank_ = 0, ranks_ = 1, left_ = 0, right_ = 0;
};

at::Tensor tensor_of(const Cells& cells) {
  return torch::tensor(cells, torch::kDouble).to(torch::kFloat).view({1, 1, -1});
}

// What a large step adds to each cell.
struct Surrogate {
  torch::nn::Sequential network{torch::nn::Conv1d(2, 32, 2 * kSmallSteps), torch::nn::GELU(),
                                torch::nn::Conv1d(32, 32, 1), torch::nn::GELU(),
                                torch::nn::Conv1d(32, 1, 1)};
  double unit = 1;  // of what the network says

  // float32 [n, 1, cells + 2 kSmallSteps] to [n, 1, cells], in units. The network sees the means
  // and the differences of neighbours.
  at::Tensor change(const at::Tensor& wide) {
    const at::Tensor left = wide.slice(2, 0, -1), right = wide.slice(2, 1);
    return network->forward(torch::cat({(left + right) / 2, (right - left) * 10}, 1));
  }

  void large_step(Burgers& flow) {
    torch::NoGradGuard no_grad;
    const at::Tensor wide = tensor_of(flow.with_halo(kSmallSteps));
    const at::Tensor added = (unit * change(wide).to(torch::kDouble)).contiguous();
    for (size_t i = 0; i < flow.u.size(); ++i) flow.u[i] += added.const_data_ptr<double>()[i];
  }
};

// What the simulation has seen: cells with their neighbourhood, and what a large step adds to them.
struct Observations {
  at::Tensor before;  // [n, 1, cells + 2 kSmallSteps]
  at::Tensor change;  // [n, 1, cells]
};

Observations observe(Burgers& flow, const Settings& settings) {
  std::vector<at::Tensor> before, change;
  for (int64_t i = 0; i < settings.flows; ++i) {
    flow.start(settings.seed * 1000 + static_cast<uint64_t>(i));
    for (int64_t step = 0; step < settings.large_steps; ++step) {
      const at::Tensor old = tensor_of(flow.u);
      before.push_back(tensor_of(flow.with_halo(kSmallSteps)));
      for (int small = 0; small < kSmallSteps; ++small) flow.small_step();
      change.push_back(tensor_of(flow.u) - old);
    }
  }
  return {torch::cat(before), torch::cat(change)};
}

// Horon's part. The communicator is the simulation's; Horon works on a copy of it.
void train(Surrogate& surrogate, const Observations& seen, const Settings& settings,
           MPI_Comm ring) {
  horon::init({.mpi_comm = &ring});
  horon::broadcast_parameters(*surrogate.network, 0);
  const auto cells = static_cast<double>(seen.change.numel());
  const at::Tensor total = horon::allreduce(
      torch::tensor({seen.change.square().sum().item<double>(), cells}, torch::kDouble),
      {.name = "changes", .op = horon::ReduceOp::Sum});
  surrogate.unit = std::sqrt((total[0] / total[1]).item<double>());

  horon::DistributedOptimizer optimizer(
      torch::optim::Adam(surrogate.network->parameters(), settings.lr), *surrogate.network);
  horon::LrScheduler scheduler(optimizer, horon::lr::cosine(static_cast<double>(settings.steps)));
  horon::Logger logger;
  logger.add(std::make_unique<horon::ConsoleSink>());
  for (int64_t step = 1; step <= settings.steps; ++step) {
    const at::Tensor chosen = torch::randint(seen.before.size(0), {8}, torch::kLong);
    const at::Tensor guess = surrogate.change(seen.before.index_select(0, chosen));
    const at::Tensor loss =
        torch::mse_loss(guess, seen.change.index_select(0, chosen) / surrogate.unit);
    optimizer.zero_grad();
    optimizer.set_weight(cells);  // ranks may have different numbers
    loss.backward();
    optimizer.step();
    scheduler.step();
    logger.log("loss", loss, {.weight = cells});
    if (step % settings.log_every == 0) logger.flush(step);
  }
  horon::check_replicas_equal(*surrogate.network);
  horon::shutdown();
}

void run(const Settings& settings) {
  MPI_Comm ring = MPI_COMM_NULL;
  int ranks = 0;
  const int periodic = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  MPI_Cart_create(MPI_COMM_WORLD, 1, &ranks, &periodic, 0, &ring);
  Burgers flow(ring, settings.cells);
  const Observations seen = observe(flow, settings);
  if (flow.speaks()) {
    std::printf("%d ranks have simulated %lld flows on %lld cells\n", ranks,
                static_cast<long long>(settings.flows), static_cast<long long>(settings.cells));
  }
  torch::manual_seed(settings.seed);  // alike on all ranks: they choose the same observations
  Surrogate surrogate;
  train(surrogate, seen, settings, ring);

  // The simulation goes on with a flow that is new: by small steps, and by the network.
  Burgers exact(ring, settings.cells), learned(ring, settings.cells);
  exact.start(settings.seed * 1000 + 999);
  learned.u = exact.u;
  const Cells start = exact.u;
  for (int64_t step = 0; step < settings.large_steps; ++step) {
    for (int small = 0; small < kSmallSteps; ++small) exact.small_step();
    surrogate.large_step(learned);
  }
  const double error = learned.distance_from(exact.u);
  learned.u = start;
  const double unchanged = learned.distance_from(exact.u);
  if (flow.speaks()) {
    std::printf(
        "a new flow, %lld large steps on: the network is off by %.2f %%, the first state by "
        "%.2f %%\n",
        static_cast<long long>(settings.large_steps), 100 * error, 100 * unchanged);
  }
  MPI_Comm_free(&ring);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = 0, rank = 0, ranks = 0;
  // Horon's thread calls MPI too.
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);

  Settings settings;
  bool runs = false;
  int code = 0;
  try {
    example::Flags flags("Simulates flows, and trains a network to do it in larger steps");
    flags
        .add("--cells", settings.cells, "cells of the grid on all ranks together",
             int64_t{16} * ranks)
        .add("--flows", settings.flows, "simulated flows to learn from")
        .add("--steps", settings.steps, "steps of the optimizer")
        .add("--lr", settings.lr, "learning rate of Adam, whatever the number of ranks")
        .add("--seed", settings.seed, "for the flows and the first weights", 0)
        .add("--large-steps", settings.large_steps,
             "large steps of each flow, each of 8 small ones")
        .add("--log-every", settings.log_every, "steps between two lines of progress");
    runs = flags.parse(argc, argv, rank == 0);
  } catch (const std::exception& error) {  // the same on all ranks
    code = example::report("burgers_surrogate", error, rank == 0);
  }
  try {
    if (runs) run(settings);
  } catch (const std::exception& error) {
    (void)example::report("burgers_surrogate", error, true);
    MPI_Abort(MPI_COMM_WORLD, 1);  // others may wait for this rank in MPI
  }
  MPI_Finalize();
  return code;
}

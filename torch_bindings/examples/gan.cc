// Trains a GAN with two optimizers on images of 28 x 28 pixels, with any number of ranks:
//
//   mpirun -np 2 gan --steps 1000 --samples gan.pgm
//
// Each network has a DistributedOptimizer of its own. The generator's gradients come through the
// discriminator, whose own parameters rest meanwhile (ToggleScope): else their gradients, which
// nobody uses, would be computed and reduced too. A step of N ranks is that of one rank with the
// whole batch: SyncBatchNorm sees all of it, and the noise is drawn for all of it.
#include <fstream>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "images.h"
#include "training_support.h"
#include <horon/horon.h>
#include <horon/torch_bindings/modules/sync_batch_norm.h>

namespace {

namespace nn = torch::nn;

struct Settings {
  std::string data;
  int64_t steps = 1000;
  size_t batch_size = 64;  // of one rank
  double lr = 2e-4;        // whatever the number of ranks
  uint64_t seed = 1;
  int64_t log_every = 50;
  std::string samples = "gan.pgm";
};

constexpr int64_t kNoise = 64;

// [n, kNoise] to images [n, 1, 28, 28] in (-1, 1).
nn::Sequential make_generator() {
  const auto grow = [](int64_t from, int64_t to) {
    return nn::ConvTranspose2d(
        nn::ConvTranspose2dOptions(from, to, 4).stride(2).padding(1).bias(false));
  };
  return nn::Sequential(nn::Linear(nn::LinearOptions(kNoise, 64 * 7 * 7).bias(false)),
                        nn::Unflatten(nn::UnflattenOptions(1, {64, 7, 7})),
                        horon::SyncBatchNorm(nn::BatchNormOptions(64)), nn::ReLU(), grow(64, 32),
                        horon::SyncBatchNorm(nn::BatchNormOptions(32)), nn::ReLU(), grow(32, 1),
                        nn::Tanh());
}

// Images [n, 1, 28, 28] to [n, 1], above 0 for those it takes for real.
nn::Sequential make_discriminator() {
  const auto shrink = [](int64_t from, int64_t to) {
    return nn::Conv2d(nn::Conv2dOptions(from, to, 4).stride(2).padding(1));
  };
  const nn::LeakyReLUOptions leaky = nn::LeakyReLUOptions().negative_slope(0.2);
  return nn::Sequential(shrink(1, 32), nn::LeakyReLU(leaky), shrink(32, 64), nn::LeakyReLU(leaky),
                        nn::Flatten(), nn::Linear(64 * 7 * 7, 1));
}

// As DCGAN begins (Radford et al. 2016).
void initialize(nn::Module& network) {
  torch::NoGradGuard no_grad;
  for (auto& parameter : network.named_parameters()) {
    if (parameter.value().dim() > 1) parameter.value().normal_(0, 0.02);
  }
}

at::Tensor loss_of(const at::Tensor& judged, double target) {
  return torch::binary_cross_entropy_with_logits(judged, torch::full_like(judged, target));
}

// Rows of a tensor that all ranks have drawn alike: those of this rank.
at::Tensor rows_of_rank(const at::Tensor& all) {
  return all.tensor_split(horon::size())[static_cast<size_t>(horon::rank())];
}

// How far generated images are from real ones: the sliced Wasserstein distance. Both kinds are
// projected on the same random directions, sorted along each, and compared there. The images are
// shared out to the ranks; the result is the same on all.
double distance_from(const at::Tensor& real, nn::Sequential& generator, torch::Device device) {
  torch::NoGradGuard no_grad;
  const int64_t images = std::min<int64_t>(real.size(0), 1000);
  at::Generator random = at::detail::createCPUGenerator(7);
  at::Tensor directions = torch::randn({28 * 28, 64}, random);
  directions /= directions.norm(2, 0);
  const at::Tensor noise = rows_of_rank(torch::randn({images, kNoise}, random));
  generator->eval();
  const at::Tensor own = generator->forward(noise.to(device)).flatten(1).cpu().mm(directions);
  generator->train();
  const at::Tensor generated = horon::allgather(own, {.name = "projections"});
  const at::Tensor wanted = (real.slice(0, 0, images).flatten(1) / 127.5 - 1).mm(directions);
  const at::Tensor gap = std::get<0>(generated.sort(0)) - std::get<0>(wanted.sort(0));
  return gap.square().mean().sqrt().item<double>();
}

// 8 x 8 generated images, as a PGM file that every viewer opens.
void save_samples(nn::Sequential& generator, torch::Device device, const std::string& path) {
  torch::NoGradGuard no_grad;
  generator->eval();  // in eval mode SyncBatchNorm communicates nothing
  horon::on_all_ranks([&] {
    if (horon::rank() != 0) return;
    at::Tensor images = generator->forward(torch::randn({64, kNoise}).to(device)).cpu();
    images = images.view({8, 8, 28, 28}).permute({0, 2, 1, 3}).add(1).mul(127.5);
    const at::Tensor bytes = images.to(torch::kByte).contiguous();
    std::ofstream file(path, std::ios::binary);
    file << "P5\n" << 8 * 28 << " " << 8 * 28 << "\n255\n";
    file.write(static_cast<const char*>(bytes.const_data_ptr()), bytes.numel());
    if (!file.flush()) throw std::runtime_error("can't write " + path);
  });
  example::print("64 generated images are in %s\n", path.c_str());
}

std::vector<size_t> next_batch(horon::DistributedBatchSampler& sampler, size_t size) {
  if (const auto rows = sampler.next(size)) return *rows;
  sampler.reset();  // the next epoch
  return sampler.next(size).value();
}

void train(nn::Sequential& generator, nn::Sequential& discriminator, const Settings& settings,
           const at::Tensor& images, torch::Device device) {
  const size_t batch = settings.batch_size;
  horon::DistributedBatchSampler sampler(static_cast<size_t>(images.size(0)), batch,
                                         {.seed = settings.seed, .drop_last = true});
  if (sampler.samples_per_epoch() == 0) {
    throw horon::Error(horon::ErrorCode::InvalidArgument,
                       "there are fewer images than in one step of all ranks");
  }
  const auto adam = torch::optim::AdamOptions(settings.lr).betas({0.5, 0.999});
  horon::DistributedOptimizer generator_optimizer(
      torch::optim::Adam(generator->parameters(), adam), *generator,
      {.name = "generator", .fused_step = horon::FusedStep::WherePossible});
  horon::DistributedOptimizer discriminator_optimizer(
      torch::optim::Adam(discriminator->parameters(), adam), *discriminator,
      {.name = "discriminator", .fused_step = horon::FusedStep::WherePossible});

  // Each rank draws the same noise for all ranks, and takes its own rows of it.
  const auto generate = [&] {
    const auto all = static_cast<int64_t>(batch) * horon::size();
    return generator->forward(rows_of_rank(torch::randn({all, kNoise})).to(device));
  };
  horon::Logger logger;
  logger.add(std::make_unique<horon::ConsoleSink>());
  for (int64_t step = 1; step <= settings.steps; ++step) {
    const at::Tensor real = example::batch_of(images, next_batch(sampler, batch)).to(device);
    const at::Tensor fake = [&] {
      torch::NoGradGuard no_grad;
      return generate();
    }();
    discriminator_optimizer.zero_grad();
    const at::Tensor discriminator_loss =
        loss_of(discriminator->forward(real), 1) + loss_of(discriminator->forward(fake), 0);
    discriminator_loss.backward();
    discriminator_optimizer.step();

    generator_optimizer.zero_grad();
    at::Tensor generator_loss;
    {
      const horon::ToggleScope generator_only(generator_optimizer, {&discriminator_optimizer});
      generator_loss = loss_of(discriminator->forward(generate()), 1);
      generator_loss.backward();
    }
    generator_optimizer.step();

    logger.log("loss/discriminator", discriminator_loss);
    logger.log("loss/generator", generator_loss);
    if (step % settings.log_every == 0) logger.flush(step);
  }
}

int run(int argc, char** argv) {
  if (!example::asks_help(argc, argv)) horon::init();
  Settings settings;
  example::Flags flags("Trains a GAN on small images with all ranks of an MPI job");
  flags.add("--data", settings.data, example::kImagesHelp)
      .add("--steps", settings.steps, "steps of each of the two networks")
      .add("--batch-size", settings.batch_size, "images per rank and step")
      .add("--lr", settings.lr, "learning rate of Adam, whatever the number of ranks")
      .add("--seed", settings.seed, "for the first weights, the noise and the order of images", 0)
      .add("--log-every", settings.log_every, "steps between two lines of progress")
      .add("--samples", settings.samples, "file for a picture of generated images (PGM)");
  if (!flags.parse(argc, argv)) return 0;
  const torch::Device device = horon::device();
  torch::manual_seed(settings.seed);  // the same on all ranks

  const example::Images images = example::load_images(settings.data);
  horon::on_all_ranks([&] {
    example::require_28_by_28(images.train, images.origin);
    example::require_28_by_28(images.test, images.origin);
  });
  example::require_writable(settings.samples);
  nn::Sequential generator = make_generator(), discriminator = make_discriminator();
  for (nn::Sequential& network : {std::ref(generator), std::ref(discriminator)}) {
    initialize(*network);
    network->to(device);
    horon::broadcast_parameters(*network, 0);
  }
  example::print("%d ranks, %lld images: %s\n", horon::size(),
                 static_cast<long long>(images.train.size(0)), images.origin.c_str());
  const double before = distance_from(images.test, generator, device);
  train(generator, discriminator, settings, images.train, device);
  horon::check_replicas_equal(*generator);
  horon::check_replicas_equal(*discriminator);
  save_samples(generator, device, settings.samples);
  const double after = distance_from(images.test, generator, device);
  example::print("distance from generated to real images: %.4f untrained, %.4f trained\n", before,
                 after);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return example::report("gan", error);
  }
}

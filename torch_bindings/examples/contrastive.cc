// Learns without labels to tell images apart, with any number of ranks:
//
//   mpirun -np 2 contrastive --steps 600
//
// Two random views of one image are to have embeddings that are alike, views of two images are not
// (SimCLR, Chen et al. 2020). info_nce() compares each view with those of all ranks: every rank
// adds images to tell apart for all others. A step of N ranks is that of one rank with the whole
// batch: SyncBatchNorm sees all of it, and the views are drawn for all of it.
#include <algorithm>

#include <torch/torch.h>

#include "images.h"
#include "training_support.h"
#include <horon/horon.h>
#include <horon/torch_bindings/modules/convert_sync_batchnorm.h>

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

struct Settings {
  std::string data;
  int64_t steps = 600;
  size_t batch_size = 64;  // images of one rank, each in two views
  double lr = 1e-3;        // whatever the number of ranks
  double temperature = 0.2;
  uint64_t seed = 1;
  int64_t log_every = 50;
};

struct EncoderImpl : nn::Module {
  // Images [n, 1, 28, 28] to what is kept of them in the end: [n, 128].
  at::Tensor represent(const at::Tensor& images) {
    return features->forward(images).amax(c10::IntArrayRef({2, 3}));
  }
  // To the embeddings that are compared in training: [n, 64].
  at::Tensor forward(const at::Tensor& images) { return head->forward(represent(images)); }

  nn::Sequential features = register_module(
      "features", nn::Sequential(shrink(1, 32), nn::BatchNorm2d(32), nn::ReLU(), shrink(32, 64),
                                 nn::BatchNorm2d(64), nn::ReLU(), shrink(64, 128),
                                 nn::BatchNorm2d(128), nn::ReLU()));
  nn::Sequential head = register_module(
      "head", nn::Sequential(nn::Linear(128, 128), nn::ReLU(), nn::Linear(128, 64)));

 private:
  static nn::Conv2d shrink(int64_t from, int64_t to) {
    return nn::Conv2d(nn::Conv2dOptions(from, to, 3).stride(2).padding(1).bias(false));
  }
};
TORCH_MODULE(Encoder);

// A view of each image: smaller or larger, moved, mirrored or not, brighter or darker. All ranks
// draw the same random numbers for the whole batch. Its row i is row i / ranks of rank i % ranks,
// as the sampler deals images out.
at::Tensor view_of(const at::Tensor& images) {
  const int64_t all = images.size(0) * horon::size();
  const at::Tensor draws = torch::rand({all, 5}).slice(0, horon::rank(), all, horon::size());
  const auto between = [&](int64_t column, double low, double high) {
    return draws.select(1, column) * (high - low) + low;
  };
  const at::Tensor zoom = between(0, 0.7, 1.4), none = torch::zeros_like(zoom);
  const at::Tensor side = draws.select(1, 1).lt(0.5).to(torch::kFloat) * 2 - 1;
  const at::Tensor places = torch::stack(
      {zoom * side, none, between(2, -0.2, 0.2), none, zoom, between(3, -0.2, 0.2)}, 1);
  const at::Tensor grid = F::affine_grid(places.view({-1, 2, 3}), images.sizes());
  auto black_outside = F::GridSampleFuncOptions().padding_mode(torch::kZeros).align_corners(false);
  const at::Tensor bright = between(4, 0.6, 1.4).view({-1, 1, 1, 1});
  return F::grid_sample(images + 1, grid, black_outside) * bright - 1;
}

// The percentage of test images whose nearest neighbour among the others, by representation, is of
// the same kind. Only this looks at labels. Each rank has a block of the images.
double same_kind(Encoder& encoder, const example::Images& images, torch::Device device) {
  torch::NoGradGuard no_grad;
  encoder->eval();
  const int64_t count = std::min<int64_t>(images.test.size(0), 2000);
  horon::DistributedSequentialSampler blocks(static_cast<size_t>(count));
  const std::vector<size_t> rows =
      blocks.next(static_cast<size_t>(count)).value_or(std::vector<size_t>());
  const at::Tensor own =
      F::normalize(encoder->represent(example::batch_of(images.test, rows).to(device))).cpu();
  const at::Tensor all = horon::allgather(own, {.name = "representations"});
  const at::Tensor mine =
      torch::tensor(std::vector<int64_t>(rows.begin(), rows.end()), torch::kLong);
  const at::Tensor likeness = own.mm(all.t()).scatter(1, mine.unsqueeze(1), -2);  // not itself
  const at::Tensor nearest = likeness.argmax(1);
  horon::metrics::Accuracy accuracy({.classes = 256});  // labels are bytes
  accuracy.update(images.test_labels.index_select(0, nearest),
                  images.test_labels.index_select(0, mine));
  encoder->train();
  return 100 * accuracy.compute().item<double>();
}

std::vector<size_t> next_batch(horon::DistributedBatchSampler& sampler, size_t size) {
  if (const auto rows = sampler.next(size)) return *rows;
  sampler.reset();  // the next epoch
  return sampler.next(size).value();
}

void train(Encoder& encoder, const Settings& settings, const at::Tensor& images,
           torch::Device device) {
  const size_t batch = settings.batch_size;
  horon::DistributedBatchSampler sampler(static_cast<size_t>(images.size(0)), batch,
                                         {.seed = settings.seed, .drop_last = true});
  if (sampler.samples_per_epoch() == 0) {
    throw horon::Error(horon::ErrorCode::InvalidArgument,
                       "there are fewer images than in one step of all ranks");
  }
  horon::DistributedOptimizer optimizer(
      torch::optim::AdamW(encoder->parameters(),
                          torch::optim::AdamWOptions(settings.lr).weight_decay(1e-4)),
      *encoder, {.fused_step = horon::FusedStep::WherePossible});
  horon::LrScheduler scheduler(optimizer, horon::lr::cosine(static_cast<double>(settings.steps)));
  horon::Logger logger;
  logger.add(std::make_unique<horon::ConsoleSink>());
  for (int64_t step = 1; step <= settings.steps; ++step) {
    const at::Tensor chosen = example::batch_of(images, next_batch(sampler, batch));
    // Both views go through the encoder together, so its BatchNorms see them as one batch.
    const at::Tensor views = torch::cat({view_of(chosen), view_of(chosen)}).to(device);
    const std::vector<at::Tensor> both = encoder->forward(views).chunk(2);
    optimizer.zero_grad();
    const at::Tensor loss =
        horon::info_nce(both[0], both[1], {.name = "views", .temperature = settings.temperature});
    loss.backward();
    optimizer.step();
    scheduler.step();
    logger.log("loss", loss);  // the mean over the ranks is that of the whole batch
    if (step % settings.log_every == 0) logger.flush(step);
  }
}

int run(int argc, char** argv) {
  if (!example::asks_help(argc, argv)) horon::init();
  Settings settings;
  example::Flags flags("Learns to tell images apart without labels, with all ranks of an MPI job");
  flags.add("--data", settings.data, example::kImagesHelp)
      .add("--steps", settings.steps, "of the optimizer")
      .add("--batch-size", settings.batch_size, "images per rank and step, each in two views")
      .add("--lr", settings.lr, "learning rate of AdamW, whatever the number of ranks")
      .add("--temperature", settings.temperature, "temperature of InfoNCE", 1e-3)
      .add("--seed", settings.seed, "for the first weights, the views and the order of images", 0)
      .add("--log-every", settings.log_every, "steps between two lines of progress");
  if (!flags.parse(argc, argv)) return 0;
  const torch::Device device = horon::device();
  torch::manual_seed(settings.seed);  // the same on all ranks

  const example::Images images = example::load_images(settings.data);
  Encoder encoder;
  horon::convert_sync_batchnorm(*encoder);
  encoder->to(device);
  horon::broadcast_parameters(*encoder, 0);
  example::print("%d ranks, %lld images: %s\n", horon::size(),
                 static_cast<long long>(images.train.size(0)), images.origin.c_str());
  const double before = same_kind(encoder, images, device);
  train(encoder, settings, images.train, device);
  horon::check_replicas_equal(*encoder);
  const double after = same_kind(encoder, images, device);
  example::print("nearest neighbour of the same kind: %.1f %% untrained, %.1f %% trained\n", before,
                 after);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return example::report("contrastive", error);
  }
}

// Trains a small convolutional network on Fashion-MNIST with any number of ranks:
//
//   mpirun -np 2 fashion_mnist --epochs 5        (or `tools/quickstart`, which builds first)
//
// An ordinary LibTorch program; what it needs to run on many ranks are the lines with `horon::`.
#include <torch/torch.h>

#include "images.h"
#include "training_support.h"
#include <horon/horon.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv1(x)), 2);
    x = torch::max_pool2d(torch::relu(conv2(x)), 2);
    return fc2(torch::relu(fc1(x.flatten(1))));
  }

  torch::nn::Conv2d conv1 = register_module("conv1", convolution(1, 16));
  torch::nn::Conv2d conv2 = register_module("conv2", convolution(16, 32));
  torch::nn::Linear fc1 = register_module("fc1", torch::nn::Linear(32 * 7 * 7, 128));
  torch::nn::Linear fc2 = register_module("fc2", torch::nn::Linear(128, 10));

 private:
  static torch::nn::Conv2d convolution(int64_t from, int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1));
  }
};
TORCH_MODULE(Net);

namespace {

struct Settings {
  std::string data = "/usr/share/datasets/fashion-mnist";
  int64_t epochs = 5;
  size_t batch_size = 64;  // per rank
  double lr = 0.025;       // of one rank; multiplied by their number
  uint64_t seed = 1;
  std::string save = "fashion_mnist.pt";
  std::string evaluate;  // a saved model: evaluate it and do not train
  int64_t log_every = 100;
};

bool parse(int argc, char** argv, Settings& settings) {
  example::Flags flags("Trains a small network on Fashion-MNIST with all ranks of an MPI job");
  flags.add("--data", settings.data, "folder with IDX files in MNIST's naming, .gz or not")
      .add("--epochs", settings.epochs, "passes over the training images", 0)
      .add("--batch-size", settings.batch_size, "images per rank and step")
      .add("--lr", settings.lr, "learning rate of one rank; multiplied by the number of ranks")
      .add("--seed", settings.seed, "for the first weights and the order of the images", 0)
      .add("--save", settings.save, "file for the trained model")
      .add("--evaluate", settings.evaluate, "saved model to evaluate, without training")
      .add("--log-every", settings.log_every, "steps between two lines of progress");
  return flags.parse(argc, argv);
}

// Throws on all ranks.
horon::IdxDataset read(const std::string& folder, horon::IdxDataset::Split split) {
  return horon::on_all_ranks([&] {
    horon::IdxDataset dataset(folder, split, {.mean = 0.286, .deviation = 0.353, .classes = 10});
    example::require_some(dataset.images(), folder);
    example::require_28_by_28(dataset.images(), folder);
    return dataset;
  });
}

// Percent of the test images that the model gets right, counted exactly over all ranks.
double evaluate(Net& model, const horon::IdxDataset& test, torch::Device device) {
  torch::NoGradGuard no_grad;
  model->eval();
  auto loader = torch::data::make_data_loader(
      test, horon::DistributedSequentialSampler(*test.size()), torch::data::DataLoaderOptions(500));
  auto correct = torch::zeros({}, torch::kLong);
  for (const auto& batch : *loader) {
    const auto guess = model(batch.data.to(device)).argmax(1);
    correct += guess.eq(batch.target.to(device)).sum().cpu();
  }
  horon::allreduce_(correct, {.name = "correct", .op = horon::ReduceOp::Sum});
  model->train();
  return 100.0 * correct.item<double>() / static_cast<double>(*test.size());
}

void train(Net& model, const Settings& settings, const horon::IdxDataset& test,
           torch::Device device) {
  const auto dataset = read(settings.data, horon::IdxDataset::Split::Train);
  horon::DistributedRandomSampler sampler(*dataset.size(), {.seed = settings.seed});
  auto loader = torch::data::make_data_loader(dataset, sampler,
                                              torch::data::DataLoaderOptions(settings.batch_size));

  horon::DistributedOptimizer optimizer(
      torch::optim::SGD(model->parameters(),
                        torch::optim::SGDOptions(horon::scale_lr(settings.lr)).momentum(0.9)),
      *model, {.op = horon::ReduceOp::Average});
  torch::optim::StepLR schedule(optimizer, 1, 0.5);

  example::Progress progress(settings.epochs, sampler.samples_per_epoch(), settings.batch_size,
                             settings.log_every);
  for (int64_t epoch = 1; epoch <= settings.epochs; ++epoch) {
    sampler.set_epoch(static_cast<size_t>(epoch));
    for (const auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(batch.data.to(device)),
                                                       batch.target.to(device));
      loss.backward();
      optimizer.step();
      progress.step(epoch, loss, optimizer.exposed_wait_seconds());
    }
    schedule.step();
    example::require_equal_parameters(*model);
    progress.end_epoch(epoch, evaluate(model, test, device));
  }
}

int run(int argc, char** argv) {
  if (!example::asks_help(argc, argv)) horon::init();
  Settings settings;
  if (!parse(argc, argv, settings)) return 0;
  const torch::Device device = horon::device();
  horon::print0("device ", device.str());
  torch::manual_seed(settings.seed);

  const auto test = read(settings.data, horon::IdxDataset::Split::Test);
  Net model;
  model->to(device);
  const bool trains = settings.evaluate.empty();
  if (trains) {
    example::require_writable(settings.save);
  } else {
    example::load_on_root(model, settings.evaluate);
  }
  horon::broadcast_parameters(*model, 0);
  if (trains) {
    train(model, settings, test, device);
    horon::save0(model, settings.save);
    horon::print0("saved ", settings.save);
  }
  example::print("test accuracy %.2f %%\n", evaluate(model, test, device));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return example::report("fashion_mnist", error);
  }
}

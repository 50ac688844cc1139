// Trains a small GPT to write like a text, letter by letter, with any number of ranks:
//
//   mpirun -np 2 char_gpt --text book.txt --run book.run
//
// With what a larger training has: warm-up and cosine, bfloat16, clipping, activations that are
// computed again in backward instead of kept, checkpoints. Started again with the same folder it
// goes on from the newest checkpoint, also on another number of ranks; in the end it writes.
// SIGUSR1 (kill -USR1, to mpirun) stops it after a step, with a checkpoint of that step.
#include <cmath>
#include <csignal>
#include <fstream>

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "char_gpt_model.h"
#include "training_support.h"
#include <horon/horon.h>

namespace {

namespace nn = torch::nn;
using example::Corpus;
using example::Gpt;
using example::Pieces;

struct Settings {
  std::string text = "/usr/share/common-licenses/GPL-3";
  std::string run = "char_gpt.run";
  example::GptShape shape;
  size_t batch_size = 16;
  int64_t steps = 400, warm_up = 40, stop_at = 0;
  double lr = 1e-3;
  bool float32 = false;
  uint64_t seed = 1;
  int64_t log_every = 20, save_every = 100;
  int64_t write = 600;
  double temperature = 0.8;
};

bool parse(int argc, char** argv, Settings& settings) {
  example::Flags flags("Trains a small GPT on a text file with all ranks of an MPI job");
  flags.add("--text", settings.text, "file to learn from, which rank 0 reads")
      .add("--run", settings.run,
           "folder for checkpoints and log.jsonl; continues from the newest checkpoint")
      .add("--layers", settings.shape.layers, "blocks of the model")
      .add("--width", settings.shape.width, "width of the model")
      .add("--heads", settings.shape.heads, "heads of attention; must divide the width")
      .add("--context", settings.shape.context, "letters that the model sees")
      .add("--dropout", settings.shape.dropout, "share of a block's outputs that is left out")
      .add("--batch-size", settings.batch_size, "pieces of text per rank and step")
      .add("--steps", settings.steps, "steps of the whole training", 0)
      .add("--warm-up", settings.warm_up, "first steps, with a rising learning rate")
      .add("--stop-at", settings.stop_at,
           "step at which this job stops, to be continued later; 0: none", 0)
      .add("--lr", settings.lr,
           "learning rate of one rank; multiplied by the square root of the ranks")
      .add("--float32", settings.float32, "compute in float32, not bfloat16")
      .add("--seed", settings.seed, "for the first weights and the order of the pieces", 0)
      .add("--log-every", settings.log_every, "steps between two lines of progress")
      .add("--save-every", settings.save_every, "steps between two checkpoints")
      .add("--write", settings.write, "letters to write in the end", 0)
      .add("--temperature", settings.temperature,
           "temperature of writing: small is safe, 1 is free", 1e-3);
  return flags.parse(argc, argv);
}

// Mean negative log likelihood of each next letter, in nats.
at::Tensor loss_of(Gpt& model, const at::Tensor& pieces, const Settings& settings) {
  const torch::Device device = horon::device();
  const at::Tensor text = pieces.to(device);
  at::Tensor logits;
  {
    const horon::amp::Autocast scope(device,
                                     {.dtype = at::kBFloat16, .enabled = !settings.float32});
    logits = model(text.narrow(1, 0, settings.shape.context));
  }
  const at::Tensor next = text.narrow(1, 1, settings.shape.context);
  return nn::functional::cross_entropy(logits.flatten(0, 1).to(torch::kFloat), next.flatten());
}

// Bits that each letter of the held-out text costs, over all ranks.
double held_out_bits(Gpt& model, const Corpus& corpus, const Settings& settings) {
  torch::NoGradGuard no_grad;
  model->eval();
  Pieces pieces(corpus.held_out, settings.shape.context, settings.shape.context);
  horon::DistributedSequentialSampler sampler(*pieces.size());
  horon::metrics::Mean mean;
  while (const auto own = sampler.next(settings.batch_size)) {
    mean.update(loss_of(model, pieces.get_batch(*own), settings), static_cast<double>(own->size()));
  }
  model->train();
  return mean.compute().item<double>() / std::log(2.0);
}

// Weights decay in matrices alone.
std::vector<torch::optim::OptimizerParamGroup> groups_of(Gpt& model, const Settings& settings) {
  std::vector<at::Tensor> matrices, vectors;
  for (at::Tensor& parameter : model->parameters()) {
    (parameter.dim() > 1 ? matrices : vectors).push_back(parameter);
  }
  const double lr = horon::scale_lr(settings.lr, horon::LrScaling::SquareRoot);
  const auto options = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(lr).betas({0.9, 0.95}).weight_decay(decay));
  };
  return {{matrices, options(0.1)}, {vectors, options(0)}};
}

horon::lr::Schedule schedule_of(const Settings& settings) {
  const auto rising = static_cast<double>(settings.warm_up);
  const double falling = std::max(1.0, static_cast<double>(settings.steps) - rising);
  return horon::lr::sequence(
      {horon::lr::warm_up(rising, 1 / rising), horon::lr::cosine(falling, 0.1)}, {rising});
}

class Training {
 public:
  Training(Gpt& model, const Corpus& corpus, const Settings& settings);

  // Takes up the newest checkpoint of the folder.
  void resume();
  void run();

 private:
  at::Tensor next_batch();
  void make_step();
  void save();

  Gpt& model_;
  const Corpus& corpus_;
  const Settings& settings_;
  horon::PrefetchLoader<Pieces, horon::DistributedBatchSampler> batches_;
  horon::DistributedOptimizer<torch::optim::AdamW> optimizer_;
  horon::LrScheduler scheduler_;
  horon::Checkpoints checkpoints_;
  horon::Logger logger_;
  horon::StepTimer timer_;
};

Training::Training(Gpt& model, const Corpus& corpus, const Settings& settings)
    : model_(model),
      corpus_(corpus),
      settings_(settings),
      batches_(corpus.pieces(settings.shape.context),
               horon::DistributedBatchSampler(*corpus.pieces(settings.shape.context).size(),
                                              settings.batch_size,
                                              {.seed = settings.seed, .drop_last = true}),
               {.ahead = 4}),
      optimizer_(torch::optim::AdamW(groups_of(model, settings)), *model,
                 {.fused_step = horon::FusedStep::WherePossible, .clip_grad_norm = 1.0}),
      scheduler_(optimizer_, schedule_of(settings)),
      checkpoints_(settings.run + "/checkpoints", {.keep_last = 2}),
      timer_({.exposed_wait_seconds = [this] { return optimizer_.exposed_wait_seconds(); }}) {
  if (batches_.sampler().samples_per_epoch() == 0) {
    throw horon::Error(horon::ErrorCode::InvalidArgument,
                       "the text is too short for one step of all ranks");
  }
  checkpoints_.add("model", *model).add("optimizer", optimizer_).add("schedule", scheduler_);
  checkpoints_.add_of_rank("pieces", batches_);
  logger_.add(std::make_unique<horon::ConsoleSink>());
  logger_.add(std::make_unique<horon::JsonlSink>(settings.run + "/log.jsonl"));
}

void Training::resume() {
  const auto found = checkpoints_.load_latest();
  if (!found) return;
  if (!found->values.at("letters").toTensor().equal(corpus_.letter_codes())) {
    throw horon::Error(
        horon::ErrorCode::InvalidArgument,
        found->path + " was trained on a text with other letters; give another --run");
  }
  // The learning rate for the ranks of the saved run becomes that for the ranks of this one.
  const double growth = static_cast<double>(horon::size()) / found->ranks;
  if (growth != 1) scheduler_.scale_base_learning_rates(std::sqrt(growth));
  horon::print0("continues after step ", found->step, ", from ", found->path);
}

at::Tensor Training::next_batch() {
  const auto time = timer_.time(horon::Phase::Data);
  if (auto batch = batches_.next()) return *batch;
  batches_.start();  // the next epoch
  return batches_.next().value();
}

void Training::make_step() {
  const at::Tensor batch = next_batch();
  at::Tensor loss;
  {
    const auto time = timer_.time(horon::Phase::Forward);
    loss = loss_of(model_, batch, settings_);
  }
  {
    const auto time = timer_.time(horon::Phase::Backward);
    optimizer_.zero_grad();
    loss.backward();
  }
  {
    const auto time = timer_.time(horon::Phase::Optimizer);
    optimizer_.step();
  }
  timer_.end_step();
  logger_.log("loss", loss);
  logger_.log("lr", scheduler_.learning_rates()[0], {.reduce = horon::Reduce::First});
  logger_.log("letters", batch.size(0) * settings_.shape.context, {.reduce = horon::Reduce::Sum});
  scheduler_.step();
}

void Training::save() {
  const double bits = held_out_bits(model_, corpus_, settings_);
  checkpoints_.save(scheduler_.steps(),
                    {.metric = bits, .values = {{"letters", corpus_.letter_codes()}}});
  logger_.log("held-out bits", bits, {.reduce = horon::Reduce::First});
}

void Training::run() {
  const int64_t last =
      settings_.stop_at > 0 ? std::min(settings_.stop_at, settings_.steps) : settings_.steps;
  horon::StopRequest stop({.signals = {SIGUSR1}});  // by which a scheduler says that time is short
  bool stops = false;
  batches_.start();
  while (scheduler_.steps() < last && !stops) {
    make_step();
    stops = stop.check();
    const int64_t step = scheduler_.steps();
    const bool saves = step % settings_.save_every == 0 || step == last || stops;
    if (saves) save();
    if (!saves && step % settings_.log_every != 0) continue;
    // To read it, the host waits for a GPU: not in each step.
    logger_.log("norm", *optimizer_.grad_norm(), {.reduce = horon::Reduce::First});
    logger_.flush(step);
  }
  checkpoints_.wait();
  horon::check_replicas_equal(*model_);
  horon::print0(timer_.gather().text());
}

// Rank 0 writes: letter by letter, as the model expects them.
void write_text(Gpt& model, const Corpus& corpus, const Settings& settings) {
  torch::NoGradGuard no_grad;
  model->eval();
  at::Generator random = at::detail::createCPUGenerator(settings.seed);
  at::Tensor text = corpus.held_out.slice(0, 0, 1).view({1, 1});
  std::string written;
  for (int64_t i = 0; i < settings.write; ++i) {
    const at::Tensor seen = text.slice(1, -settings.shape.context).to(horon::device());
    const at::Tensor logits = model(seen).select(1, -1).cpu() / settings.temperature;
    const at::Tensor letter = torch::multinomial(logits.softmax(-1), 1, false, random);
    text = torch::cat({text, letter}, 1);
    written += corpus.letters[static_cast<size_t>(letter.item<int64_t>())];
  }
  horon::print0("It writes:\n\n", written, "\n");
}

int64_t parameter_count(const nn::Module& module) {
  int64_t count = 0;
  for (const at::Tensor& parameter : module.parameters()) count += parameter.numel();
  return count;
}

int run(int argc, char** argv) {
  if (!example::asks_help(argc, argv)) horon::init();
  Settings settings;
  if (!parse(argc, argv, settings)) return 0;
  if (settings.shape.width % settings.shape.heads != 0) {
    throw horon::Error(horon::ErrorCode::InvalidArgument, "--heads does not divide --width");
  }
  std::string text;
  example::read_on_root(settings.text, [&] {
    std::ifstream file(settings.text, std::ios::binary);
    text.assign(std::istreambuf_iterator<char>(file), {});
  });
  const Corpus corpus(horon::broadcast_object(text), settings.shape.context);

  torch::manual_seed(settings.seed);
  Gpt model(settings.shape, static_cast<int64_t>(corpus.letters.size()));
  model->to(horon::device());
  horon::broadcast_parameters(*model, 0);
  torch::manual_seed(settings.seed + static_cast<uint64_t>(horon::rank()));  // each drops its own
  example::print("%d ranks, %lld letters of %zu kinds, %lld parameters\n", horon::size(),
                 static_cast<long long>(corpus.training.size(0)), corpus.letters.size(),
                 static_cast<long long>(parameter_count(*model)));
  Training training(model, corpus, settings);
  training.resume();
  const double before = held_out_bits(model, corpus, settings);
  training.run();
  const double after = held_out_bits(model, corpus, settings);
  if (settings.write > 0) {
    horon::rank_zero_only([&] { write_text(model, corpus, settings); });
  }
  example::print("bits for each held-out letter: %.4f at first, %.4f now\n", before, after);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return example::report("char_gpt", error);
  }
}

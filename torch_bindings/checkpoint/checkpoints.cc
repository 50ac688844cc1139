#include "horon/torch_bindings/checkpoint/checkpoints.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/blocked_signals.h"
#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/core/base/log.h"
#include "horon/core/base/text.h"
#include "horon/ops/session/session.h"
#include "horon/torch_bindings/checkpoint/checkpoint_folder.h"
#include "horon/torch_bindings/checkpoint/checkpoint_parts.h"
#include "horon/torch_bindings/checkpoint/opened_checkpoint.h"
#include "horon/torch_bindings/checkpoint/random_state.h"
#include "horon/torch_bindings/checkpoint/rank_state.h"
#include "horon/torch_bindings/collectives/bytes.h"
#include "horon/torch_bindings/tensors/collective_step.h"
#include "horon/torch_bindings/tensors/failures.h"

namespace horon {
namespace {

using core::concat;
using torch_detail::CheckpointLabel;
using torch_detail::CheckpointPart;
using torch_detail::Fact;
using torch_detail::FoundCheckpoint;
using torch_detail::kAbout;
using torch_detail::kBuffers;
using torch_detail::kRandom;
using torch_detail::kRanks;
using torch_detail::kValues;
using torch_detail::OpenedCheckpoint;
using torch_detail::value_in;

}  // namespace

class Checkpoints::Impl {
 public:
  Impl(std::string folder, const CheckpointOptions& options)
      : folder_(std::move(folder)), options_(options) {
    on_all_ranks(
        [&] {
          if (rank() == 0) torch_detail::prepare_folder(folder_);
        },
        {.name = "Checkpoints", .worker = 0});
  }

  ~Impl() {
    if (writer_.joinable()) writer_.join();
    if (failure_) core::log(core::LogLevel::Error, failure_->what());
  }

  void add(const std::string& name, std::unique_ptr<CheckpointPart> part) {
    claim(name);
    parts_.emplace_back(name, std::move(part));
  }
  void add_of_rank(const std::string& name, Archived thing) {
    claim(name);
    of_ranks_.emplace_back(name, std::move(thing));
  }

  void save(int64_t step, const CheckpointValues& values) {
    agree("Checkpoints::save", step, values.metric, [] { return std::string(); });
    std::string own;
    c10::impl::GenericDict content = torch_detail::text_dictionary();
    on_all_ranks([&] { finish(); }, {.name = "Checkpoints::save", .worker = 0});
    gather_parts();
    const std::string buffers_of_root =
        broadcast_bytes(torch_detail::buffer_fingerprints(parts_), {.name = "checkpoint.buffers"});
    on_all_ranks(
        [&] {
          own = torch_detail::to_bytes(own_state(buffers_of_root));
          if (rank() == 0) content = copy_parts(values);
        },
        {.name = "Checkpoints::save"});
    const std::vector<std::string> of_ranks = gather_bytes(own, {.name = "checkpoint.ranks"});
    on_all_ranks(
        [&] {
          if (rank() != 0) return;
          c10::impl::GenericList list(c10::AnyType::get());
          for (const std::string& bytes : of_ranks) list.push_back(torch_detail::from_bytes(bytes));
          content.insert(kRanks, list);
          write({.number = 0, .step = step, .metric = values.metric}, content);
          if (!options_.in_background) finish();
        },
        {.name = "Checkpoints::save"});
  }

  void wait() {
    on_all_ranks([&] { finish(); }, {.name = "Checkpoints::wait", .worker = 0});
  }

  // `find`: candidates, the best first; called on rank 0. The rest is for people, where there are
  // candidates and none can be read.
  std::optional<LoadedCheckpoint> load(const std::function<std::vector<FoundCheckpoint>()>& find,
                                       std::string_view sought = "checkpoint",
                                       std::string_view advice = ". Move them away to begin anew") {
    std::string header_of_rank_0;
    const std::optional<OpenedCheckpoint> opened = on_all_ranks(
        [&]() -> std::optional<OpenedCheckpoint> {
          finish();
          if (rank() != 0) return std::nullopt;
          std::optional<OpenedCheckpoint> first = torch_detail::open_first(find(), sought, advice);
          header_of_rank_0 = torch_detail::header_of(first);
          return first;
        },
        {.name = "Checkpoints::load", .worker = 0});
    const c10::IValue header =
        torch_detail::from_bytes(broadcast_bytes(header_of_rank_0, {.name = "checkpoint.header"}));
    if (header.toGenericDict().empty()) return std::nullopt;
    const c10::impl::GenericList of_ranks = opened ? torch_detail::list_in(opened->content, kRanks)
                                                   : c10::impl::GenericList(c10::AnyType::get());
    agree("Checkpoints::load", 0, {},
          [&] { return opened ? misfit(*opened, of_ranks) : std::string(); });
    const torch_detail::SavedOfRanks saved =
        torch_detail::share_states(of_ranks, static_cast<int>(value_in(header, kRanks).toInt()));
    using Turn = torch_detail::CheckpointPart::Turn;
    load_parts(opened, Turn::Optimizer);
    load_of_ranks(saved);  // also optimizers
    load_parts(opened, Turn::Archive);
    load_parts(opened, Turn::Bulk);
    on_all_ranks([&] { torch_detail::load_rank_state(parts_, saved); },
                 {.name = "Checkpoints::load"});
    return loaded_from(header);
  }

  // On rank 0.
  std::vector<FoundCheckpoint> newest() const { return torch_detail::list_checkpoints(folder_); }
  std::vector<FoundCheckpoint> best() const {
    return torch_detail::best_first(newest(), options_.best == CheckpointOptions::Best::Lowest);
  }

  // The path of the first one with a readable label, from rank 0.
  std::optional<std::string> first(const std::function<std::vector<FoundCheckpoint>()>& find) {
    const std::string path = on_all_ranks(
        [&]() -> std::string {
          finish();
          if (rank() != 0) return {};
          for (const FoundCheckpoint& one : find()) {
            if (one.problem.empty()) return one.path;
          }
          return {};
        },
        {.name = "Checkpoints", .worker = 0});
    std::string agreed = broadcast_bytes(path, {.name = "checkpoint.path"});
    return agreed.empty() ? std::nullopt : std::optional<std::string>(std::move(agreed));
  }

 private:
  void claim(const std::string& name) {
    const bool reserved =
        name == kAbout || name == kValues || name == kRanks || name == kRandom || name == kBuffers;
    const auto has_name = [&](const auto& entry) { return entry.first == name; };
    if (!reserved && std::none_of(parts_.begin(), parts_.end(), has_name) &&
        std::none_of(of_ranks_.begin(), of_ranks_.end(), has_name)) {
      return;
    }
    throw Error(ErrorCode::InvalidArgument,
                concat("checkpoints: the name \"", name, "\" is taken"));
  }

  std::vector<Fact> facts_of(int64_t step, const std::optional<double>& metric) const {
    std::vector<Fact> facts{{"the step", std::to_string(step)},
                            {"the metric", torch_detail::metric_text(metric)}};
    for (const auto& [name, part] : parts_) facts.push_back(part->fact(name));
    for (const auto& [name, thing] : of_ranks_) {
      facts.push_back({concat("\"", name, "\""), "a thing of each rank"});
    }
    return facts;
  }

  // The ranks hold the same things and mean the same checkpoint, and `refusal` is empty on all.
  void agree(const char* call, int64_t step, const std::optional<double>& metric,
             const std::function<std::string()>& refusal) const {
    std::vector<Fact> facts;
    std::string error;
    try {
      facts = facts_of(step, metric);
      error = refusal();
    } catch (...) {
      error = core::current_error().what();
    }
    torch_detail::require_agreement(call, facts, error, {});
  }

  // Each of them, as some ranks may have no part in one that fails.
  void gather_parts() const {
    torch_detail::Failures failures;
    for (const auto& entry : parts_) failures.run([&] { entry.second->gather(); });
    torch_detail::throw_together(failures.first(), {.name = "Checkpoints::save"});
  }

  c10::impl::GenericDict copy_parts(const CheckpointValues& values) {
    c10::impl::GenericDict content = torch_detail::text_dictionary();
    c10::impl::GenericDict about = torch_detail::text_dictionary();
    about.insert("format", int64_t{1});
    about.insert("ranks", int64_t{size()});
    content.insert(kAbout, about);
    c10::impl::GenericDict own = torch_detail::text_dictionary();
    for (const auto& [name, value] : values.values) {
      own.insert(name, torch_detail::plain_copy(name, value));
    }
    content.insert(kValues, own);
    for (const auto& [name, part] : parts_) content.insert(name, part->take());
    return content;
  }

  c10::IValue own_state(const std::string& buffers_of_root) const {
    c10::impl::GenericDict own = torch_detail::text_dictionary();
    own.insert(kRandom, torch_detail::random_states());
    own.insert(kBuffers, torch_detail::differing_buffers(parts_, buffers_of_root));
    for (const auto& [name, thing] : of_ranks_) {
      own.insert(name, torch_detail::bytes_tensor(torch_detail::archive_bytes(thing.save)));
    }
    return own;
  }

  void write(CheckpointLabel label, const c10::IValue& content) {
    const core::BlockedSignals blocked;
    writer_ = std::thread([this, label, content]() mutable {
      try {
        if (!std::exchange(tidied_, true)) torch_detail::remove_unfinished(folder_);
        for (const FoundCheckpoint& one : newest()) {
          label.number = std::max(label.number, one.label.number + 1);
        }
        torch_detail::write_checkpoint_file(torch_detail::checkpoint_path(folder_, label.step),
                                            label, content);
        torch_detail::prune_folder(folder_, options_.keep_last, options_.keep_best,
                                   options_.best == CheckpointOptions::Best::Lowest);
      } catch (...) {
        failure_ = core::current_error();
      }
    });
  }

  // The file that is being written; does nothing on other ranks than 0.
  void finish() {
    if (writer_.joinable()) writer_.join();
    if (const std::optional<Error> failure = std::exchange(failure_, std::nullopt)) throw *failure;
  }

  // Why the checkpoint can't be loaded here. On rank 0.
  std::string misfit(const OpenedCheckpoint& opened, const c10::impl::GenericList& of_ranks) const {
    const auto says = [&](const std::string& name, const std::string& what) {
      return concat("checkpoint ", opened.path, ", \"", name, "\": ", what);
    };
    const c10::impl::GenericDict content = opened.content.toGenericDict();
    for (const auto& [name, part] : parts_) {
      const auto saved = content.find(name);
      const std::string why =
          saved == content.end() ? "it has nothing of that name" : part->misfit(saved->value());
      if (!why.empty()) return says(name, why);
    }
    for (const auto& [name, thing] : of_ranks_) {
      for (size_t r = 0; r < of_ranks.size(); ++r) {
        if (!of_ranks.get(r).toGenericDict().contains(name)) {
          return says(name, concat("it has nothing of that name of rank ", r));
        }
      }
      if (!thing.load_resharded && static_cast<int>(of_ranks.size()) != size()) {
        return says(name, concat("it was saved by ", of_ranks.size(),
                                 " ranks, and what has no "
                                 "load_resharded() can't be loaded by ",
                                 size()));
      }
    }
    return {};
  }

  void load_parts(const std::optional<OpenedCheckpoint>& opened,
                  torch_detail::CheckpointPart::Turn turn) {
    on_all_ranks(
        [&] {
          if (!opened) return;
          for (const auto& [name, part] : parts_) {
            if (part->turn() == turn) part->load(value_in(opened->content, name));
          }
        },
        {.name = "Checkpoints::load"});
    for (const auto& [name, part] : parts_) {
      if (part->turn() == turn) part->spread(name);
    }
  }

  void load_of_ranks(const torch_detail::SavedOfRanks& saved) {
    for (const auto& entry : of_ranks_) {  // Clang 14 has no structured bindings in a lambda
      const std::string& name = entry.first;
      const auto& thing = entry.second;
      on_all_ranks(
          [&] {
            std::vector<torch::serialize::InputArchive> archives;
            for (const c10::IValue& state : saved.states) {
              const std::string bytes =
                  torch_detail::tensor_bytes(value_in(state, name).toTensor());
              const bool stays = saved.same_ranks;
              if (stays && torch_detail::load_there(thing.optimizer, thing.module, bytes)) return;
              archives.push_back(torch_detail::archive_from(bytes));
            }
            if (saved.same_ranks) {
              thing.load(archives.front());
            } else {
              thing.load_resharded(archives);
            }
          },
          {.name = concat("checkpoint: \"", name, "\"")});
    }
  }

  static LoadedCheckpoint loaded_from(const c10::IValue& header) {
    LoadedCheckpoint loaded;
    loaded.path = value_in(header, "path").toStringRef();
    loaded.step = value_in(header, "step").toInt();
    loaded.ranks = static_cast<int>(value_in(header, kRanks).toInt());
    const c10::IValue metric = value_in(header, "metric");
    if (metric.isDouble()) loaded.metric = metric.toDouble();
    for (const auto& entry : value_in(header, kValues).toGenericDict()) {
      loaded.values.emplace(entry.key().toStringRef(), entry.value());
    }
    return loaded;
  }

  const std::string folder_;
  const CheckpointOptions options_;
  torch_detail::NamedParts parts_;
  std::vector<std::pair<std::string, Archived>> of_ranks_;
  std::thread writer_;            // on rank 0; it alone uses what follows while it runs
  std::optional<Error> failure_;  // of the last file
  bool tidied_ = false;           // what an earlier job has left unfinished is gone
};

Checkpoints::Checkpoints(std::string folder, const CheckpointOptions& options)
    : impl_(std::make_unique<Impl>(std::move(folder), options)) {}
Checkpoints::~Checkpoints() = default;

Checkpoints& Checkpoints::add(const std::string& name, const torch::nn::Module& module) {
  impl_->add(name, torch_detail::tensors_part([&module] { return NamedTensors(module); },
                                              [&module] {
                                                NamedTensors buffers;
                                                buffers.append(module.named_buffers());
                                                return buffers;
                                              }));
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name, const NamedTensors& tensors) {
  impl_->add(name, torch_detail::tensors_part([tensors] { return tensors; },
                                              [] { return NamedTensors(); }));
  return *this;
}

Checkpoints& Checkpoints::add(const std::string& name, torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch_detail::CollectiveStep*>(&optimizer) != nullptr) {
    throw Error(ErrorCode::InvalidArgument,
                core::concat("checkpoints: \"", name, "\" is an optimizer that steps by the ",
                             "gradients of its own rank, and its state differs between ranks: ",
                             "give it to add_of_rank()"));
  }
  impl_->add(name, torch_detail::optimizer_part(optimizer));
  return *this;
}

Checkpoints& Checkpoints::add_archived(const std::string& name, Archived thing, bool of_rank) {
  if (of_rank) {
    impl_->add_of_rank(name, std::move(thing));
  } else {
    impl_->add(name, torch_detail::archive_part(std::move(thing.save), std::move(thing.load)));
  }
  return *this;
}

void Checkpoints::save(int64_t step, const CheckpointValues& values) { impl_->save(step, values); }
void Checkpoints::wait() { impl_->wait(); }

std::optional<LoadedCheckpoint> Checkpoints::load_latest() {
  return impl_->load([&] { return impl_->newest(); });
}
std::optional<LoadedCheckpoint> Checkpoints::load_best() {
  return impl_->load([&] { return impl_->best(); }, "checkpoint with a metric");
}

LoadedCheckpoint Checkpoints::load(const std::string& path) {
  return *impl_->load([&] { return std::vector<FoundCheckpoint>{{.path = path}}; }, "checkpoint",
                      "");
}

std::optional<std::string> Checkpoints::latest() {
  return impl_->first([&] { return impl_->newest(); });
}
std::optional<std::string> Checkpoints::best() {
  return impl_->first([&] { return impl_->best(); });
}

}  // namespace horon

#include "horon/torch_bindings/checkpoint/checkpoints.h"

#include <algorithm>
#include <cstdio>
#include <thread>
#include <type_traits>

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
#include "horon/torch_bindings/collectives/agreed_path.h"
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
    require_same_path("Checkpoints", folder_);
    together("Checkpoints", [&] {
      if (is_writer()) torch_detail::prepare_folder(folder_);
    });
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
    together("Checkpoints::save", [&] { finish(); });
    gather_parts();
    const std::string buffers_of_root =
        broadcast_bytes(torch_detail::buffer_fingerprints(parts_), from_writer("buffers"));
    on_all_ranks(
        [&] {
          own = torch_detail::to_bytes(own_state(buffers_of_root));
          if (is_writer()) content = torch_detail::content_of(parts_, values.values, set().size());
        },
        in_set("Checkpoints::save"));
    const std::vector<std::string> of_ranks = gather_bytes(own, from_writer("ranks"));
    together("Checkpoints::save", [&] {
      if (!is_writer()) return;
      c10::impl::GenericList list(c10::AnyType::get());
      for (const std::string& bytes : of_ranks) list.push_back(torch_detail::from_bytes(bytes));
      content.insert(kRanks, list);
      write({.number = 0, .step = step, .metric = values.metric}, content);
      if (!options_.in_background) finish();
    });
  }

  void wait() {
    together("Checkpoints::wait", [&] { finish(); });
  }

  // `find`: candidates, the best first; called on the writer. `sought` and `advice` are for the
  // error text, if there are candidates and none can be read.
  std::optional<LoadedCheckpoint> load(
      const std::function<std::vector<FoundCheckpoint>()>& find,
      std::string_view sought = "checkpoint",
      std::string_view advice = ". To begin training anew, move them away") {
    std::string own_header;
    const auto opened = together("Checkpoints::load", [&]() -> std::optional<OpenedCheckpoint> {
      finish();
      if (!is_writer()) return std::nullopt;
      auto first = torch_detail::open_first(find(), sought, advice, damaged_);
      own_header = torch_detail::header_of(first);
      return first;
    });
    const c10::IValue header =
        torch_detail::from_bytes(broadcast_bytes(own_header, from_writer("header")));
    if (header.toGenericDict().empty()) return std::nullopt;
    const c10::impl::GenericList of_ranks = opened ? torch_detail::list_in(opened->content, kRanks)
                                                   : c10::impl::GenericList(c10::AnyType::get());
    agree("Checkpoints::load", 0, {},
          [&] { return opened ? misfit(*opened, of_ranks) : std::string(); });
    const torch_detail::SavedOfRanks saved = torch_detail::share_states(
        of_ranks, static_cast<int>(value_in(header, kRanks).toInt()), set());
    using Turn = torch_detail::CheckpointPart::Turn;
    load_parts(opened, Turn::Optimizer);
    load_of_ranks(saved);  // also optimizers
    load_parts(opened, Turn::Archive);
    load_parts(opened, Turn::Bulk);
    on_all_ranks([&] { torch_detail::load_rank_state(parts_, saved, set()); },
                 in_set("Checkpoints::load"));
    return torch_detail::loaded_from(header);
  }

  // On the writer.
  std::vector<FoundCheckpoint> newest() const { return torch_detail::list_checkpoints(folder_); }
  std::vector<FoundCheckpoint> best() const {
    return torch_detail::best_first(newest(), options_.best == CheckpointOptions::Best::Lowest);
  }

  // The path of the first one with a readable label, from the writer.
  std::optional<std::string> first(const std::function<std::vector<FoundCheckpoint>()>& find) {
    const std::string path = together("Checkpoints", [&]() -> std::string {
      finish();
      if (!is_writer()) return {};
      for (const FoundCheckpoint& one : find()) {
        if (one.problem.empty()) return one.path;
      }
      return {};
    });
    std::string agreed = broadcast_bytes(path, from_writer("path"));
    return agreed.empty() ? std::nullopt : std::optional<std::string>(std::move(agreed));
  }

  // Compares the path of this call, which the writer alone reads.
  void require_same_path(const char* call, const std::string& path) const {
    torch_detail::require_same_path(
        call, path,
        "Give all ranks the same path; a process set that trains a model "
        "of its own needs its own Checkpoints: {.process_set = set}",
        set());
  }

 private:
  const ProcessSet& set() const { return options_.process_set; }
  bool is_writer() const { return set().rank() == 0; }
  int writer() const { return torch_detail::writer_of(set()); }
  AgreementOptions in_set(std::string name) const {
    return {.name = std::move(name), .process_set = set()};
  }
  ObjectOptions from_writer(const char* what) const {  // or to it
    return {.name = concat("checkpoint.", what), .root = writer(), .process_set = set()};
  }

  void claim(const std::string& name) {
    const bool reserved =
        name == kAbout || name == kValues || name == kRanks || name == kRandom || name == kBuffers;
    const auto has_name = [&](const auto& entry) { return entry.first == name; };
    if (!reserved && std::none_of(parts_.begin(), parts_.end(), has_name) &&
        std::none_of(of_ranks_.begin(), of_ranks_.end(), has_name)) {
      return;
    }
    throw Error(ErrorCode::InvalidArgument,
                concat("checkpoints: the name \"", name,
                       reserved ? "\" is reserved" : "\" is taken", "; give another"));
  }

  std::vector<Fact> facts_of(int64_t step, const std::optional<double>& metric) const {
    std::vector<Fact> facts{{"the step", std::to_string(step)},
                            {"the metric", torch_detail::metric_text(metric)}};
    for (const auto& [name, part] : parts_) facts.push_back(part->fact(name, set()));
    for (const auto& [name, thing] : of_ranks_) {
      facts.push_back({concat("\"", name, "\""), "state of each rank"});
    }
    return facts;
  }

  // Throws unless the ranks hold the same things and mean the same checkpoint, and `refusal` is
  // empty on all.
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
    torch_detail::require_agreement(call, facts, error, set());
  }

  // Gathers all parts, even if one fails: some ranks may have nothing to do with that one.
  void gather_parts() const {
    torch_detail::Failures failures;
    for (const auto& entry : parts_)
      failures.run([&] { entry.second->gather(entry.first, set()); });
    torch_detail::throw_together(failures.first(), in_set("Checkpoints::save"));
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

  void write(const CheckpointLabel& label, const c10::IValue& content) {
    const core::BlockedSignals blocked;
    writer_ = std::thread([this, label, content] {
      try {
        if (!std::exchange(tidied_, true)) torch_detail::remove_unfinished(folder_);
        torch_detail::add_to_folder(folder_, label, content, options_, damaged_);
      } catch (...) {
        failure_ = core::current_error();
      }
    });
  }

  // Waits for the file that is being written; does nothing on ranks other than the writer. Within
  // together().
  void finish() {
    if (writer_.joinable()) writer_.join();
    if (failure_) throw *failure_;
  }

  // When all ranks get a file's error from here, it has been told. If they get another error (a
  // rank is gone), the file's error stays for the next call or the log.
  template <class Work>
  std::invoke_result_t<Work> together(const char* name, const Work& work) {
    try {
      return on_all_ranks(work, {.name = name, .process_set = set(), .worker = writer()});
    } catch (const Error& error) {
      if (writer_.joinable()) throw;  // it may be writing to failure_
      const bool is_told = failure_ && std::string_view(error.what()).ends_with(failure_->what());
      if (is_told) failure_.reset();
      throw;
    }
  }

  // Why the checkpoint can't be loaded here. On the writer.
  std::string misfit(const OpenedCheckpoint& opened, const c10::impl::GenericList& of_ranks) const {
    const auto says = [&](const std::string& name, const std::string& what) {
      return concat("checkpoint ", opened.path, ", \"", name, "\": ", what);
    };
    const c10::impl::GenericDict content = opened.content.toGenericDict();
    for (const auto& [name, part] : parts_) {
      const auto saved = content.find(name);
      const std::string why =
          saved == content.end() ? "it holds nothing of that name" : part->misfit(saved->value());
      if (!why.empty()) return says(name, why);
    }
    for (const auto& [name, thing] : of_ranks_) {
      for (size_t r = 0; r < of_ranks.size(); ++r) {
        if (!of_ranks.get(r).toGenericDict().contains(name)) {
          return says(name, concat("it holds nothing of that name for rank ", r));
        }
      }
      if (!thing.load_resharded && static_cast<int>(of_ranks.size()) != set().size()) {
        return says(name,
                    concat("it was saved by ", of_ranks.size(), " ranks and can't be loaded by ",
                           set().size(), ", since it has no load_resharded()"));
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
        in_set("Checkpoints::load"));
    for (const auto& [name, part] : parts_) {
      if (part->turn() == turn) part->spread(name, set());
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
          in_set(concat("checkpoint: \"", name, "\"")));
    }
  }

  const std::string folder_;
  const CheckpointOptions options_;
  torch_detail::NamedParts parts_;
  std::vector<std::pair<std::string, Archived>> of_ranks_;
  std::thread writer_;            // on the writer; it alone uses what follows while it runs
  std::optional<Error> failure_;  // of the last file
  bool tidied_ = false;           // what an earlier job has left unfinished is gone
  torch_detail::DamagedCheckpoints damaged_;  // that load() has found
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
                core::concat("checkpoints: \"", name, "\" is an optimizer that steps with ",
                             "the gradients of its own rank, so its state differs between ranks; ",
                             "add it by add_of_rank()"));
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
  impl_->require_same_path("Checkpoints::load", path);
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

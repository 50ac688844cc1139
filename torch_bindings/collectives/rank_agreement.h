// Do the ranks agree? What a rank does alone (reads a file, checks its arguments) may fail there
// alone, and ranks may hold different things. These calls make one Error of it that all ranks
// throw, so that none goes on into collectives in which others never take part.
//
//   const auto images = horon::on_all_ranks([&] {
//     return horon::IdxDataset(path, horon::IdxDataset::Split::Train);
//   });
//
// All are collective over the process set and block; every rank of the set makes the same calls in
// the same order. Ranks that have joined don't count, and may have missed calls. Any thread; calls
// of one name wait for each other. They throw what collectives throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "horon/core/base/current_error.h"
#include "horon/core/base/error.h"
#include "horon/ops/session/process_set.h"

namespace horon {

struct AgreementOptions {
  std::string name = {};  // empty: "on_all_ranks"
  ProcessSet process_set = {};
  // The only rank whose `work` does anything: a rank of the world, in the set. Once it has joined,
  // the work would not be done: then the others throw Error(RankLeft).
  std::optional<int> worker = {};
};

namespace torch_detail {

// What is wrong with this rank's call, to be told to the other ranks. Throws if they can't be told:
// there is no session, this rank is not in the set, or it may not begin a collective
// (RankZeroScope).
std::optional<Error> fault_of_call(const AgreementOptions& options);
// `own` is this rank's error, if it has one. If any rank has one, all throw the error of the lowest
// such rank, with a text that names the rank. Error(RankLeft) if the worker has joined.
void throw_together(const std::optional<Error>& own, const AgreementOptions& options);
// The same for a text, empty if there is no error; `call` is what the error is about.
void throw_together(ErrorCode code, const std::string& call, const std::string& own_error,
                    const ProcessSet& set);

// 64 bits that stand for any number of words and texts, in their order. Each step is a bijection of
// the state, so that a single difference always shows.
class Fingerprint {
 public:
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15;
    state_ ^= state_ >> 32;
  }
  void add(const void* data, size_t bytes);
  void add(std::string_view text) { add(text.data(), text.size()); }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0x243f6a8885a308d3;
};

// One thing that the ranks should have alike.
struct Fact {
  std::string what;      // tensor "weight"; each once in a list
  std::string value;     // float32 [3, 2]
  uint64_t content = 0;  // the fingerprint of what is too long to be sent

  bool operator==(const Fact&) const = default;
};

// Returns if every rank gives the same facts, in whatever order. Else throws Error(Mismatch) with
// one text on all ranks: the first fact that differs from the lowest rank's, on which ranks, and
// what only some ranks have. `own_error`: why this rank's call is wrong (empty: it is not); then
// all throw Error(InvalidArgument) instead. 16 bytes travel from each rank if all agree.
void require_agreement(const std::string& call, const std::vector<Fact>& facts,
                       const std::string& own_error, const ProcessSet& set);

}  // namespace torch_detail

// What `work` returns, if it has returned on all ranks. If it has thrown on any, all throw an Error
// with the text of the lowest such rank: with its code if it was a horon::Error, else
// OperationFailed. `work` runs on the calling thread, and not at all where the call itself can't be
// made: outside a session, in a RankZeroScope, on a rank that is not in the set. In `work` no
// collective (on_all_ranks() is one) may come after code that can throw on one rank alone: that
// rank would skip it and wait here, while the others wait in it.
//
//   horon::on_all_ranks([&] { if (horon::rank() == 0) write_report(path); }, {.worker = 0});
template <class Work>
auto on_all_ranks(const Work& work, const AgreementOptions& options = {}) {
  using Result = decltype(work());
  std::optional<std::conditional_t<std::is_void_v<Result>, bool, Result>> result;
  std::optional<Error> failure = torch_detail::fault_of_call(options);
  if (!failure) {
    try {
      if constexpr (std::is_void_v<Result>) {
        work();
      } else {
        result.emplace(work());
      }
    } catch (...) {
      failure = core::current_error();
    }
  }
  torch_detail::throw_together(failure, options);
  if constexpr (!std::is_void_v<Result>) return *std::move(result);
}

}  // namespace horon

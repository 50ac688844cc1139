#include "horon/tests/support/simulation/program.h"

#include <array>
#include <cstring>
#include <span>
#include <sstream>
#include <utility>

#include "horon/core/base/text.h"

namespace horon::simulation {
namespace {

using core::concat;

std::string flags_text(const std::vector<bool>& flags) {
  std::string text;
  for (const bool flag : flags) text += flag ? '1' : '0';
  return text;
}

template <class T>
std::string numbers_text(const std::vector<T>& values) {
  std::ostringstream out;
  for (size_t i = 0; i < values.size(); ++i) out << (i > 0 ? "," : "") << values[i];
  return out.str();
}

std::string id_text(core::EntryId id) { return id == core::kNoId ? "" : concat("#", id); }

std::string entry_text(const core::PlannedEntry& entry) {
  std::string text = id_text(entry.id);
  if (entry.spec != nullptr) text += concat(text.empty() ? "" : "=", entry.name);
  if (!entry.produced.empty()) text += concat(" produced=", flags_text(entry.produced));
  if (!entry.extents.empty()) text += concat(" rows=", numbers_text(entry.extents));
  return text;
}

std::string plan_text(const core::Plan& plan) {
  std::string text = "Plan";
  for (const core::PlannedBatch& batch : plan.batches) {
    text += " {";
    for (size_t i = 0; i < batch.entries.size(); ++i) {
      text += concat(i > 0 ? ", " : "", entry_text(batch.entries[i]));
    }
    if (!batch.joined.empty()) text += concat("; joined ", numbers_text(batch.joined));
    text += "}";
  }
  return text;
}

std::string ready_text(const core::Ready& ready) {
  std::string text = ready.id != core::kNoId
                         ? concat("Ready ", id_text(ready.id))
                         : concat("Ready ", ready.name, " ", describe(*ready.spec));
  if (!ready.absent.empty()) text += concat(" absent=", flags_text(ready.absent));
  if (!ready.extents.empty()) text += concat(" rows=", numbers_text(ready.extents));
  return text;
}

}  // namespace

std::vector<int64_t> extents_said(const core::EntrySpec& spec, bool is_root, int size) {
  std::vector<int64_t> said;
  for (const core::TensorPart& part : spec.parts) {
    const size_t count = core::extents_of_part(spec, is_root, size);
    if (count == 0) continue;
    const std::vector<int64_t> splits =
        count == 1 && spec.kind != CollectiveKind::Alltoall && spec.kind != CollectiveKind::Scatter
            ? std::vector<int64_t>{part.shape.front()}
            : core::even_splits(part.shape.front(), size);
    said.insert(said.end(), splits.begin(), splits.end());
  }
  return said;
}

Action submit(std::string name, core::SpecPtr spec, std::vector<bool> absent) {
  Action action;
  action.kind = Action::Kind::Submit;
  action.name = std::move(name);
  action.spec = std::move(spec);
  action.absent = std::move(absent);
  return action;
}

Action refuse(std::string name) {
  Action action;
  action.kind = Action::Kind::Refuse;
  action.name = std::move(name);
  return action;
}

Action wait(std::string name) {
  Action action;
  action.kind = Action::Kind::Wait;
  action.name = std::move(name);
  return action;
}

Action wait_all() { return wait(""); }

Action join() {
  Action action;
  action.kind = Action::Kind::Join;
  return action;
}

Action shutdown() {
  Action action;
  action.kind = Action::Kind::Shutdown;
  return action;
}

Action think(Nanos time) {
  Action action;
  action.time = time;
  return action;
}

Action in_same_breath(Action action) {
  action.same_breath = true;
  return action;
}

bool may_be_eager(const Action& action) {
  return action.spec->kind == CollectiveKind::Allreduce && action.absent.empty();
}

std::vector<std::byte> bytes_of(const Contribution& contribution) {
  const std::array<uint64_t, 2> numbers = {static_cast<uint64_t>(contribution.rank),
                                           contribution.action};
  const auto bytes = std::as_bytes(std::span(numbers));
  return {bytes.begin(), bytes.end()};
}

std::optional<Contribution> contribution_of(const std::vector<std::byte>& bytes) {
  std::array<uint64_t, 2> numbers{};
  if (bytes.size() != sizeof(numbers)) return std::nullopt;
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return Contribution{static_cast<int>(numbers[0]), numbers[1]};
}

std::string describe(const Action& action) {
  std::string text = action.same_breath ? "& " : "";
  switch (action.kind) {
    case Action::Kind::Submit:
      text += concat("submit ", action.name, " ", describe(*action.spec));
      if (!action.absent.empty()) text += concat(" absent=", flags_text(action.absent));
      break;
    case Action::Kind::Refuse:
      text += concat("refuse ", action.name);
      break;
    case Action::Kind::Wait:
      text += action.name.empty() ? "wait all" : concat("wait ", action.name);
      break;
    case Action::Kind::Join:
      text += "join";
      break;
    case Action::Kind::Shutdown:
      text += "shutdown";
      break;
    case Action::Kind::Think:
      text += concat("think ", action.time / 1000, " us");
      break;
  }
  return text;
}

std::string describe(const core::EntrySpec& spec) {
  std::string text = concat(to_string(spec.kind), " ", to_string(spec.dtype));
  if (spec.kind == CollectiveKind::Allreduce) text += concat(" ", to_string(spec.reduce_op));
  if (spec.kind == CollectiveKind::Broadcast) text += concat(" root=", spec.root);
  if (spec.device != DeviceKind::Host) text += concat(" ", to_string(spec.device));
  if (spec.prescale != 1.0) text += concat(" prescale=", spec.prescale);
  if (spec.postscale != 1.0) text += concat(" postscale=", spec.postscale);
  for (const core::TensorPart& part : spec.parts) {
    text += concat(" ", part.name, core::shape_text(part.shape));
  }
  return text;
}

std::string describe(const core::RingItem& entry) {
  switch (entry.kind) {
    case core::RingItem::Kind::Marker:
      return concat("log up to ", entry.value);
    case core::RingItem::Kind::Filled:
      return concat("Filled ", entry.value);
    case core::RingItem::Kind::Go:
      break;
  }
  return concat("Go ", entry.value, entry.more ? " and more" : "");
}

std::string describe(const core::Item& item) {
  return std::visit(
      core::Overloaded{
          [](const core::Ready& i) { return ready_text(i); },
          [](const core::Refused& i) { return concat("Refused ", i.name, ": ", i.text); },
          [](const core::Join&) { return std::string("Join"); },
          [](const core::Shutdown&) { return std::string("Shutdown"); },
          [](const core::Ping&) { return std::string("Ping"); },
          [](const core::Pong&) { return std::string("Pong"); },
          [](const core::Plan& i) { return plan_text(i); },
          [](const core::Fail& i) { return concat("Fail (", to_string(i.code), ") ", i.text); },
          [](const core::Unused& i) { return concat("Unused ", i.name); },
          [](const core::Joined& i) { return concat("Joined, last was ", i.last); },
          [](const core::Bye&) { return std::string("Bye"); },
          [](const core::Stall& i) {
            return concat("Stall: ", i.text.empty() ? "nothing is missing any more" : i.text);
          },
          [](const core::Freeze& i) {
            std::string text = "Freeze";
            for (size_t n = 0; n < i.ids.size(); ++n) {
              text += concat(" ", id_text(i.ids[n]), " at ", i.places[n]);
            }
            return text;
          },
          [](const core::Thaw& i) { return concat("Thaw ", numbers_text(i.places)); },
          [](const core::Deviate& i) { return concat("Deviate ", i.place); },
          [](const core::RingItem& i) { return describe(i); },
          [](const core::Eager& i) { return concat("Eager #", i.id, " round ", i.round); },
          [](const core::Seek& i) { return concat("Seek ", i.name); },
          [](const core::Found& i) {
            return concat("Found ", i.name, i.gone ? ": nothing comes any more" : "");
          },
          [](const core::Drained& i) { return concat("Drained after ", i.batches); },
          [](const core::Abort& i) { return concat("Abort (", to_string(i.code), ") ", i.text); },
      },
      item);
}

std::string describe(const Outcome& outcome) {
  switch (outcome.kind) {
    case Outcome::Kind::None:
      return "nothing";
    case Outcome::Kind::Pending:
      return "pending";
    case Outcome::Kind::Unused:
      return "unused";
    case Outcome::Kind::Failed:
      return concat("failed (", to_string(outcome.code), ") ", outcome.text);
    case Outcome::Kind::Joined:
      return concat("joined, last was ", outcome.last_joined);
    case Outcome::Kind::Ran:
      break;
  }
  std::string text = concat("ran with ", outcome.contributors, " contributors:");
  for (const Contribution& part : *outcome.contributions) {
    text += concat(" ", part.rank, "/", part.action);
  }
  if (!outcome.produced.empty()) text += concat(" produced=", flags_text(outcome.produced));
  if (!outcome.extents.empty()) text += concat(" rows=", numbers_text(outcome.extents));
  return text;
}

std::string describe(const std::vector<Program>& programs) {
  std::string text;
  for (size_t rank = 0; rank < programs.size(); ++rank) {
    text += concat("rank ", rank, ":");
    for (size_t i = 0; i < programs[rank].size(); ++i) {
      text += concat(i > 0 ? "; " : " ", describe(programs[rank][i]));
    }
    text += "\n";
  }
  return text;
}

}  // namespace horon::simulation

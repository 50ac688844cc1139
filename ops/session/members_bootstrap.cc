#include "horon/ops/session/members_bootstrap.h"

#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/core/runtime/pair_sets.h"

namespace horon::ops {
namespace {

using core::concat;
using Handle = std::shared_ptr<core::HandleState>;

// One message, to or from this rank.
struct Message {
  int from = 0;
  int to = 0;
  std::string name;
  const std::string& what;
};

// The bytes are kept by the submission: after a failure MPI may still read or write them.
Handle submit(core::Runtime& runtime, const Message& message,
              const std::shared_ptr<std::string>& bytes) {
  const auto count = static_cast<int64_t>(bytes->size());
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Broadcast;
  spec->dtype = DataType::UInt8;
  spec->root = message.from;
  spec->parts = {{message.what, {count}}};
  auto* const data = reinterpret_cast<std::byte*>(bytes->data());
  core::Submission submission;
  submission.set = core::pair_set(message.from, message.to, runtime.topology().size);
  submission.name = message.name;
  submission.spec = std::move(spec);
  submission.memory = {{data, data, count}};
  submission.keep_alive = bytes;
  return runtime.submit(std::move(submission));
}

std::string bytes_of(uint64_t number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

uint64_t number_of(std::string_view bytes) {
  uint64_t number = 0;
  HORON_CHECK(bytes.size() >= sizeof number, "a number has eight bytes");
  std::memcpy(&number, bytes.data(), sizeof number);
  return number;
}

}  // namespace

MembersBootstrap::MembersBootstrap(core::Runtime& runtime, std::vector<int> members,
                                   std::string name, std::string what)
    : runtime_(runtime),
      members_(std::move(members)),
      name_(std::move(name)),
      what_(std::move(what)) {}

std::string MembersBootstrap::name_of(int from, int to, bool length) const {
  return concat(name_, ", ", from, " to ", to, length ? ", length" : "");
}

// The negotiation speaks of tensors, and the caller has named none.
void MembersBootstrap::finish(const std::shared_ptr<core::HandleState>& message) const {
  try {
    (void)message->get();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Mismatch) throw;
    throw Error(error.code(), concat(name_, ": its members gave different lists of ranks, and all ",
                                     "must give the same list and number: ", error.what()));
  }
}

// On the other members. The length goes first, since the lowest member must allocate memory.
void MembersBootstrap::send(int to, std::string_view bytes) const {
  const int me = topology().rank;
  const auto length = std::make_shared<std::string>(bytes_of(bytes.size()));
  finish(submit(runtime_, {me, to, name_of(me, to, true), what_}, length));
  const auto copy = std::make_shared<std::string>(bytes);
  finish(submit(runtime_, {me, to, name_of(me, to, false), what_}, copy));
}

std::string MembersBootstrap::receive(int from) const {
  const int me = topology().rank;
  const auto length = std::make_shared<std::string>(bytes_of(0));
  finish(submit(runtime_, {from, me, name_of(from, me, true), what_}, length));
  const auto bytes = std::make_shared<std::string>(number_of(*length), '\0');
  finish(submit(runtime_, {from, me, name_of(from, me, false), what_}, bytes));
  return *bytes;
}

// On the lowest member: one message to or from each other member. If one fails, the others hear of
// it by their next message, for which they wait.
void MembersBootstrap::with_each(Stage stage, const Blocks& blocks) const {
  const int me = topology().rank;
  const bool up = stage == Stage::LengthUp || stage == Stage::BytesUp;
  const bool length = stage == Stage::LengthUp || stage == Stage::LengthDown;
  std::vector<Handle> handles;
  for (size_t i = 1; i < members_.size(); ++i) {
    const int from = up ? members_[i] : me;
    const int to = up ? me : members_[i];
    handles.push_back(submit(runtime_, {from, to, name_of(from, to, length), what_}, blocks[i]));
  }
  std::optional<Error> fault;
  std::vector<int> ready;
  for (size_t i = 1; i < members_.size(); ++i) {
    try {
      finish(handles[i - 1]);
      ready.push_back(members_[i]);
    } catch (const Error& error) {
      if (!fault) fault = error;
    }
  }
  if (!fault) return;
  for (const int member : ready) {
    if (stage == Stage::BytesDown) continue;  // it has all that it waits for
    const bool next_is_up = stage == Stage::LengthUp;
    const std::string next =
        next_is_up ? name_of(member, me, false) : name_of(me, member, stage == Stage::BytesUp);
    runtime_.refuse(next, fault->what(), core::pair_set(me, member, topology().size));
  }
  throw Error(*fault);
}

std::string MembersBootstrap::gather(std::string_view mine) const {
  Blocks lengths(members_.size());
  for (auto& length : lengths) length = std::make_shared<std::string>(bytes_of(0));
  *lengths.front() = bytes_of(mine.size());
  with_each(Stage::LengthUp, lengths);
  Blocks blocks = {std::make_shared<std::string>(mine)};
  for (size_t i = 1; i < members_.size(); ++i) {
    blocks.push_back(std::make_shared<std::string>(number_of(*lengths[i]), '\0'));
  }
  with_each(Stage::BytesUp, blocks);
  std::string all;
  for (size_t i = 0; i < members_.size(); ++i) all += *lengths[i] + *blocks[i];
  return all;
}

// All blocks in one string, each behind its length.
std::string MembersBootstrap::exchange(std::string_view mine) const {
  if (topology().rank != members_.front()) {
    send(members_.front(), mine);
    return receive(members_.front());
  }
  const auto all = std::make_shared<std::string>(gather(mine));
  const auto length = std::make_shared<std::string>(bytes_of(all->size()));
  with_each(Stage::LengthDown, Blocks(members_.size(), length));
  with_each(Stage::BytesDown, Blocks(members_.size(), all));
  return *all;
}

std::vector<std::string> MembersBootstrap::allgather(Among among, std::string_view mine) const {
  const std::string all = exchange(mine);
  std::vector<std::string> of_job(static_cast<size_t>(topology().size));
  std::string_view rest = all;
  for (const int member : members_) {
    const uint64_t length = number_of(rest);
    of_job[static_cast<size_t>(member)] = rest.substr(sizeof length, length);
    rest.remove_prefix(sizeof length + length);
  }
  if (among == Among::Job) return of_job;
  std::vector<std::string> of_host;
  for (const int rank : topology().local_ranks) {
    of_host.push_back(std::move(of_job[static_cast<size_t>(rank)]));
  }
  return of_host;
}

}  // namespace horon::ops

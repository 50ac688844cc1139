// Any bytes that arrive as a control message are refused or understood, and at worst a rank that
// reads them ends with an error. With libFuzzer this is the fuzzed function; without it,
// tests/support/fuzz_main.cc calls it.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "horon/core/base/error.h"
#include "horon/core/negotiation/controller.h"
#include "horon/core/negotiation/wire_format.h"
#include "horon/tests/support/fuzz_corpus.h"
#include "horon/tests/support/simulation/random_envelope.h"

namespace {

using horon::core::Controller;
using horon::core::Effects;

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "wire_format_fuzz: %s\n", what);
  std::abort();
}

horon::core::SpecPtr submitted_spec() {
  auto spec = std::make_shared<horon::core::EntrySpec>();
  spec->parts = {{"x", {2}}, {"y", {3}}};
  return spec;
}

void feed(int rank, int from, std::span<const std::byte> bytes) {
  Controller::Options options;
  options.rank = rank;
  options.size = 3;
  options.stall_warn_after = 1;
  options.eager = true;
  options.host_of = {0, 1, 2};
  Controller controller(options);
  horon::core::Request request;
  request.ticket = 1;
  request.name = "x";
  request.spec = submitted_spec();
  request.eager = true;
  request.elements.resize(20);
  controller.submit(std::move(request));
  for (int round = 0; round < 2; ++round) {
    controller.receive(from, bytes);
    controller.tick(round * 2'000'000'000LL);
    const Effects effects = controller.take_effects();
    for (const auto& batch : effects.starts) {
      require(batch.contributors > 0 && !batch.entries.empty(), "a batch that can't be");
      for (const auto& entry : batch.entries) require(entry.spec != nullptr, "no spec");
      controller.batch_finished();
    }
  }
}

}  // namespace

// A message of each kind, with random contents, and those that mean something to the rank that is
// fed: words about its entry, and what may follow on them.
std::vector<horon::testing_support::FuzzInput> horon::testing_support::fuzz_corpus() {
  using namespace horon::core;
  std::vector<Envelope> messages;
  std::mt19937_64 random(1);
  for (size_t kind = 0; kind < std::variant_size_v<Item>; ++kind) {
    for (int i = 0; i < 4; ++i) messages.push_back({0, 0, {simulation::random_item(random, kind)}});
  }
  for (int i = 0; i < 30; ++i) messages.push_back(simulation::random_envelope(random));
  PlannedEntry entry;
  entry.id = 1;
  entry.name = "x";
  entry.spec = submitted_spec();
  entry.eager = true;
  const Plan plan{{PlannedBatch{{entry}, {}}}};
  const Ready ready{kNoId, "x", submitted_spec(), true, {}, {}};
  const Eager eager{1, 0, std::vector<std::byte>(20)};
  for (const std::vector<Item>& items : std::vector<std::vector<Item>>{
           {ready},
           {ready, Shutdown{}},
           {ready, eager, eager},
           {Eager{kNoId, 0, {}}},
           {Refused{"x", "no good"}, Join{}},
           {plan},
           {plan, eager, Eager{1, 1, {}}, Fail{"x", ErrorCode::Mismatch, "differs"}},
           {Fail{"x", ErrorCode::Mismatch, "differs"}},
           {Unused{"x"}},
           {plan, Freeze{{1}, {1}}, Thaw{{1}}},
           {Shutdown{}, Drained{1}}}) {
    messages.push_back({0, 0, items});
  }
  std::vector<FuzzInput> corpus;
  for (const Envelope& message : messages) {
    const std::vector<std::byte> bytes = encode(message);
    require(encode(decode(bytes)) == bytes, "a message of the corpus can't be read");
    const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
    corpus.emplace_back(data, data + bytes.size());
  }
  return corpus;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  try {
    const std::vector<std::byte> again = horon::core::encode(horon::core::decode(bytes));
    require(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
            "it was read as something else");
  } catch (const horon::Error&) {
    // Refused: all is well.
  }
  feed(0, 1, bytes);
  feed(1, 0, bytes);
  feed(1, 2, bytes);
  return 0;
}

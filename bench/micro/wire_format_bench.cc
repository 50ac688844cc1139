// Encoding and decoding of the messages of a training step.
#include <memory>
#include <string>

#include <benchmark/benchmark.h>

#include "horon/core/negotiation/wire_format.h"

namespace {

using namespace horon::core;

Envelope cached_ready(int count) {
  Envelope envelope;
  for (int i = 0; i < count; ++i) {
    Ready ready;
    ready.id = static_cast<EntryId>(i + 1);
    envelope.items.emplace_back(ready);
  }
  return envelope;
}

Envelope cold_ready(int parts) {
  EntrySpec spec;
  for (int i = 0; i < parts; ++i) {
    spec.parts.push_back({"encoder.layer" + std::to_string(i) + ".weight", {256, 256}});
  }
  Ready ready;
  ready.name = "bucket.0";
  ready.spec = std::make_shared<const EntrySpec>(spec);
  Envelope envelope;
  envelope.items.emplace_back(ready);
  return envelope;
}

Envelope cached_plan(int entries) {
  PlannedBatch batch;
  for (int i = 0; i < entries; ++i) {
    PlannedEntry entry;
    entry.id = static_cast<EntryId>(i + 1);
    batch.entries.push_back(entry);
  }
  Envelope envelope;
  envelope.items.emplace_back(Plan{{batch}});
  return envelope;
}

void encode_decode(benchmark::State& state, Envelope (*make)(int)) {
  const Envelope envelope = make(static_cast<int>(state.range(0)));
  size_t bytes = 0;
  for (auto _ : state) {
    const std::vector<std::byte> encoded = encode(envelope);
    bytes = encoded.size();
    benchmark::DoNotOptimize(decode(encoded));
  }
  state.counters["bytes"] = static_cast<double>(bytes);
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK_CAPTURE(encode_decode, cached_ready, cached_ready)->Arg(1)->Arg(400);
BENCHMARK_CAPTURE(encode_decode, cold_ready_of_parts, cold_ready)->Arg(1)->Arg(60);
BENCHMARK_CAPTURE(encode_decode, cached_plan_of_entries, cached_plan)->Arg(1)->Arg(400);

}  // namespace

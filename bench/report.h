// Prints results as a table like that of nccl-tests, and as JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "horon/bench/measure.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"

namespace horon::bench {

// In 10^9 bytes per second.
double algbw(const Row& row, const Timing& timing);

// Versions, ranks, and why the op was chosen. Collective over the members of the set; the first of
// them prints the returned text.
std::string header_text(const Options& options, const ProcessSet& set, MpiPeer& mpi);
std::string column_titles(const Options& options);
std::string row_text(const Options& options, const Row& row, int ranks);
std::string footer_text(const std::vector<Row>& rows, const Options& options, int ranks);

// Keys as in nccl-tests' JSON, plus "peers" with times and the quartiles of the ratios, "ping",
// "memory", "set", "op_chosen", "machine".
nlohmann::json to_json(const Options& options, const ProcessSet& set, const std::vector<Row>& rows);

int64_t wrong_in(const std::vector<Row>& rows);
// The largest ratio of Horon's time to the first peer's, in place and out of place; 0 without a
// peer.
double worst_ratio(const std::vector<Row>& rows);

}  // namespace horon::bench

// The table of nccl-tests, and the same as JSON.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "horon/bench/measure.h"
#include "horon/bench/mpi_peer.h"
#include "horon/bench/options.h"

namespace horon::bench {

// Bytes per second over 10^9.
double algbw(const Row& row, const Timing& timing);

// Versions, ranks, and why the op was chosen. Collective; the text is for rank 0 to print.
std::string header_text(const Options& options, MpiPeer& mpi);
std::string column_titles(const Options& options);
std::string row_text(const Options& options, const Row& row, int ranks);
std::string footer_text(const std::vector<Row>& rows, const Options& options, int ranks);

// Keys as in nccl-tests' JSON, plus "peer", "ratio", "memory", "op_chosen", "machine".
nlohmann::json to_json(const Options& options, const std::vector<Row>& rows, int ranks);

int64_t wrong_in(const std::vector<Row>& rows);
// The largest time of Horon over the peer's, in place (out of place where there is no other); 0
// without a peer.
double worst_ratio(const std::vector<Row>& rows);

}  // namespace horon::bench

// What every bootstrap must do. Each rank of the job calls check_bootstrap() with its own.
#pragma once

#include <new>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "horon/core/base/text.h"
#include "horon/core/bootstrap/bootstrap.h"
#include "horon/tests/support/error_of.h"

namespace horon::core {

using test::error_of;

inline void check_allgather(const Bootstrap& bootstrap) {
  const Topology& topology = bootstrap.topology();
  // Texts of any length, of zeros, and an empty one.
  const auto text_of = [](int rank) { return std::string(static_cast<size_t>(rank * rank), '\0'); };
  const auto texts = bootstrap.allgather(Bootstrap::Among::Job, text_of(topology.rank));
  ASSERT_EQ(texts.size(), static_cast<size_t>(topology.size));
  for (int rank = 0; rank < topology.size; ++rank) {
    EXPECT_EQ(texts[static_cast<size_t>(rank)], text_of(rank));
  }
  std::vector<int> all;
  for (int rank = 0; rank < topology.size; ++rank) all.push_back(rank);
  EXPECT_EQ(allgather_values(bootstrap, Bootstrap::Among::Job, topology.rank), all);
  EXPECT_EQ(allgather_values(bootstrap, Bootstrap::Among::Host, topology.rank),
            topology.local_ranks);
}

inline void check_require_same(const Bootstrap& bootstrap) {
  const int rank = bootstrap.topology().rank;
  const int size = bootstrap.topology().size;
  require_same(bootstrap, "version", "0.1.0");
  require_same(bootstrap, "version", "");
  for (int odd_one = 1; odd_one < size; ++odd_one) {
    const bool differs = rank >= odd_one;
    const std::string text =
        differs ? concat("a=1\nb=", rank, "\nc=3") : std::string("a=1\nb=0\nc=3");
    EXPECT_EQ(error_of([&] { require_same(bootstrap, "configuration", text); }),
              concat(to_string(ErrorCode::Config), ": configuration differs between ranks: rank 0 ",
                     "has 'b=0', rank ", odd_one, " has 'b=", odd_one, "'"));
  }
  if (size == 1) return;
  // One text is the beginning of the other.
  const std::string longer = rank == 1 ? "a\nb" : "a";
  EXPECT_EQ(error_of([&] { require_same(bootstrap, "list", longer); }),
            concat(to_string(ErrorCode::Config),
                   ": list differs between ranks: rank 0 has '', rank 1 has 'b'"));
}

// A fault on one rank is the same error on all of them.
inline void check_agree(const Bootstrap& bootstrap) {
  const int rank = bootstrap.topology().rank;
  const int size = bootstrap.topology().size;
  agree(bootstrap, std::nullopt);
  run_on_all(bootstrap, [] {});
  const std::string limit(to_string(ErrorCode::Limit));
  const Error fault(ErrorCode::Limit, "no room");
  EXPECT_EQ(error_of([&] { agree(bootstrap, fault); }), limit + ": no room");
  for (int guilty = 0; guilty < size && size > 1; ++guilty) {
    const std::string expected = concat(limit, ": no room (on rank ", guilty, ")");
    EXPECT_EQ(error_of([&] {
                run_on_all(bootstrap, [&] {
                  if (rank == guilty) throw Error(fault);
                });
              }),
              expected);
  }
  EXPECT_EQ(error_of([&] { run_on_all(bootstrap, [] { throw std::bad_alloc(); }); }),
            limit + ": out of memory");
  const std::string failed(to_string(ErrorCode::OperationFailed));
  EXPECT_EQ(error_of([&] { run_on_all(bootstrap, [] { throw 42; }); }),
            failed + ": an exception that is no std::exception");
  if (size < 3) return;
  // The error is that of the lowest rank with a fault.
  const Error other(ErrorCode::Config, concat("fault of rank ", rank));
  EXPECT_EQ(
      error_of([&] { agree(bootstrap, rank == 0 ? std::nullopt : std::optional<Error>(other)); }),
      concat(to_string(ErrorCode::Config), ": fault of rank 1 (on rank 1)"));
}

inline void check_bootstrap(const Bootstrap& bootstrap) {
  check_allgather(bootstrap);
  check_require_same(bootstrap);
  check_agree(bootstrap);
}

}  // namespace horon::core

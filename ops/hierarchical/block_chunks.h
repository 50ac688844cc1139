// How the blocks of all members are cut into chunks, and in which order these go between the hosts.
// A pure function of facts that all ranks share.
#pragma once

#include <cstdint>
#include <vector>

#include "horon/core/bootstrap/topology.h"

namespace horon::ops {

// A block belongs to a member: the one from which all get it, or the one that gets it. The order
// takes turns among the hosts of the members, so that all hosts send and receive all the time;
// within a host, it takes turns among the lanes, so that its lanes have equally much to do.
class BlockChunks {
 public:
  // `blocks`: elements, [member]. `chunk_elements`: of all chunks but the last of each block.
  BlockChunks(const core::Topology& topology, int lanes, std::vector<int64_t> blocks,
              int64_t chunk_elements);

  struct Chunk {
    int host = 0;  // of its member
    int member = 0;
    int local_rank = 0;  // of its member
    int64_t begin = 0;   // elements, within its block
    int64_t count = 0;   // elements; 0: an empty chunk that only fills its lane's place in a row
  };
  int64_t count() const { return count_; }
  // Within its lane it has the number `index` / lanes.
  Chunk at(int64_t index) const;
  int64_t chunk_elements() const { return chunk_elements_; }

 private:
  struct Host {
    std::vector<int> members;
    std::vector<int64_t> first_chunk;  // [local rank], among those of the host
    int64_t chunks = 0;
    int64_t rows = 0;  // a row has one chunk for each lane
  };
  // From row `first_row` on, these hosts have rows in turn.
  struct Turns {
    int64_t first = 0;  // among the rows of all
    int64_t first_row = 0;
    std::vector<int> hosts;
  };

  const int64_t lanes_;
  const std::vector<int64_t> blocks_;
  const int64_t chunk_elements_;
  std::vector<Host> hosts_;
  std::vector<Turns> turns_;
  int64_t count_ = 0;
};

}  // namespace horon::ops

#include "horon/ops/host/exchange_peers.h"

namespace horon::ops {

const std::byte* ExchangePeers::block_of(int from) const {
  const ExchangeMember& member = cell_.member(from);
  const std::byte* input = nullptr;
  switch (member.input_reached) {
    case Reached::InCell:
      input = cell_.payload(from);
      break;
    case Reached::Mapped:
      input = group_.map(from, member.input);
      break;
    case Reached::ByKernel:
      input = reinterpret_cast<const std::byte*>(member.input.offset);
      break;
    case Reached::ByNobody:
      return nullptr;  // and the place in its ring is not known yet
  }
  return input + cell_.pair(from, rank_).send_begin;
}

std::byte* ExchangePeers::ring_of(int from) const {
  return group_.map(from, cell_.member(from).input) + cell_.pair(from, rank_).send_begin;
}

std::byte* ExchangePeers::place_in(int to) const {
  const ExchangeMember& member = cell_.member(to);
  const int64_t begin = cell_.pair(rank_, to).receive_begin;
  if (member.output_reached == Reached::ByKernel) {
    return reinterpret_cast<std::byte*>(member.output.offset + static_cast<uint64_t>(begin));
  }
  return group_.map(to, member.output) + begin;
}

}  // namespace horon::ops

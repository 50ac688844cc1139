#include "horon/ops/host/exchange_peers.h"

namespace horon::ops {

const std::byte* ExchangePeers::block_of(int from) const {
  const ExchangeMember& member = cell_.member(from);
  const int64_t begin = cell_.pair(from, rank_).send_begin;
  switch (member.input_reached) {
    case Reached::InCell:
      return cell_.payload(from) + begin;
    case Reached::Mapped:
      return group_.map(from, member.input) + begin;
    case Reached::ByKernel:
      return reinterpret_cast<const std::byte*>(member.input.offset) + begin;
    case Reached::ByNobody:
      break;
  }
  return nullptr;
}

std::byte* ExchangePeers::ring_of(int from) const {
  return group_.map(from, cell_.member(from).input) + cell_.pair(from, rank_).send_begin;
}

std::byte* ExchangePeers::place_in(int to) const {
  const ExchangeMember& member = cell_.member(to);
  std::byte* const output = member.output_reached == Reached::ByKernel
                                ? reinterpret_cast<std::byte*>(member.output.offset)
                                : group_.map(to, member.output);
  return output + cell_.pair(rank_, to).receive_begin;
}

}  // namespace horon::ops

#include "horon/ops/host/exchange_peers.h"

namespace horon::ops {

const std::byte* ExchangePeers::block_of(int from) const {
  const ExchangeMember& member = cell_.member(from);
  if (member.gives == Gives::Private) return nullptr;
  const std::byte* const input =
      member.gives == Gives::Payload ? cell_.payload(from) : group_.map(from, member.input);
  return input + cell_.pair(from, rank_).send_begin;
}

std::byte* ExchangePeers::ring_of(int from) const {
  return group_.map(from, cell_.member(from).input) + cell_.pair(from, rank_).send_begin;
}

std::byte* ExchangePeers::place_in(int to) const {
  return group_.map(to, cell_.member(to).output) + cell_.pair(rank_, to).receive_begin;
}

}  // namespace horon::ops

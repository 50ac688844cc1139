#include "horon/ops/host/exchange_peers.h"

namespace horon::ops {

const std::byte* ExchangePeers::block_of(int from) const {
  const ExchangeMember& member = slot_.member(from);
  if (member.gives == Gives::Private) return nullptr;
  const std::byte* const input =
      member.gives == Gives::Payload ? slot_.payload(from) : group_.map(from, member.input);
  return input + slot_.pair(from, rank_).send_begin;
}

const std::byte* ExchangePeers::ring_of(int from) const {
  return group_.map(from, slot_.member(from).input) + slot_.pair(from, rank_).send_begin;
}

std::byte* ExchangePeers::place_in(int to) const {
  return group_.map(to, slot_.member(to).output) + slot_.pair(rank_, to).receive_begin;
}

}  // namespace horon::ops

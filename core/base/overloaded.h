// One callable made of several lambdas, one for each alternative of a variant, for std::visit.
#pragma once

namespace horon::core {

template <class... Cases>
struct Overloaded : Cases... {
  using Cases::operator()...;
};
template <class... Cases>
Overloaded(Cases...) -> Overloaded<Cases...>;

}  // namespace horon::core

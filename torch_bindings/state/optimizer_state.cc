#include "horon/torch_bindings/state/optimizer_state.h"

#include <cstdint>
#include <deque>
#include <optional>
#include <sstream>
#include <typeinfo>

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/tensor.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/archive.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"
#include "horon/torch_bindings/tensors/plain_mode.h"
#include "horon/torch_bindings/tensors/wrapped_optimizer.h"

namespace horon::torch_detail {
namespace {

namespace optim = torch::optim;

// The fields of each kind of state, in one order for writing and reading.
template <class Fields>
void visit(Fields& fields, optim::SGDParamState& state) {
  fields(state.momentum_buffer());
}
template <class Fields>
void visit(Fields& fields, optim::AdamParamState& state) {
  fields(state.step());
  fields(state.exp_avg());
  fields(state.exp_avg_sq());
  fields(state.max_exp_avg_sq());
}
template <class Fields>
void visit(Fields& fields, optim::AdamWParamState& state) {
  fields(state.step());
  fields(state.exp_avg());
  fields(state.exp_avg_sq());
  fields(state.max_exp_avg_sq());
}
template <class Fields>
void visit(Fields& fields, optim::AdagradParamState& state) {
  fields(state.step());
  fields(state.sum());
}
template <class Fields>
void visit(Fields& fields, optim::RMSpropParamState& state) {
  fields(state.step());
  fields(state.square_avg());
  fields(state.momentum_buffer());
  fields(state.grad_avg());
}
template <class Fields>
void visit(Fields& fields, optim::LBFGSParamState& state) {
  fields(state.func_evals());
  fields(state.n_iter());
  fields(state.t());
  fields(state.prev_loss());
  fields(state.d());
  fields(state.H_diag());
  fields(state.prev_flat_grad());
  fields.list(state.old_dirs());
  fields.list(state.old_stps());
  fields.list(state.ro());
  int64_t has_al = state.al().has_value() ? 1 : 0;
  fields(has_al);
  if (has_al == 0) return;
  if (!state.al()) state.al().emplace();
  fields.list(*state.al());
}

// How a tensor is written.
constexpr int64_t kUndefined = 0;
constexpr int64_t kDense = 1;
constexpr int64_t kSparse = 2;  // momentum of sparse gradients: two dense ones, indices and values

struct Writer {
  std::vector<int64_t> integers;
  std::vector<double> reals;
  std::vector<at::Tensor> tensors;

  void operator()(int64_t value) { integers.push_back(value); }
  void operator()(double value) { reals.push_back(value); }
  void operator()(const at::Tensor& tensor) {
    if (!tensor.defined()) return integers.push_back(kUndefined);
    integers.push_back(tensor.is_sparse() ? kSparse : kDense);
    integers.push_back(static_cast<int64_t>(tensor.scalar_type()));
    integers.push_back(tensor.dim());
    integers.insert(integers.end(), tensor.sizes().begin(), tensor.sizes().end());
    if (!tensor.is_sparse()) return tensors.push_back(tensor);
    integers.push_back(tensor.is_coalesced() ? 1 : 0);
    (*this)(tensor._indices());
    (*this)(tensor._values());
  }
  template <class List>
  void list(const List& items) {
    (*this)(static_cast<int64_t>(items.size()));
    for (const at::Tensor& item : items) (*this)(item);
  }
};

struct Reader {
  const int64_t* integer;
  const double* real;
  std::vector<at::Tensor>& tensors;
  at::Tensor parameter;  // state of its shape gets its strides

  void operator()(int64_t& value) { value = *integer++; }
  void operator()(double& value) { value = *real++; }
  void operator()(at::Tensor& tensor) {
    const int64_t kind = *integer++;
    if (kind == kUndefined) return;
    const auto dtype = static_cast<at::ScalarType>(*integer++);
    const int64_t dims = *integer++;
    const at::IntArrayRef shape(integer, static_cast<size_t>(dims));
    integer += dims;
    if (kind == kSparse) {
      const bool coalesced = *integer++ != 0;
      at::Tensor indices, values;  // whose memory is filled later
      (*this)(indices);
      (*this)(values);
      tensor = at::_sparse_coo_tensor_unsafe(indices, values, shape, {}, coalesced);
      return;
    }
    const auto options = parameter.options().dtype(dtype).requires_grad(false);
    tensor =
        shape == parameter.sizes() ? at::empty_like(parameter, options) : at::empty(shape, options);
    tensors.push_back(tensor);
  }
  template <class List>
  void list(List& items) {
    int64_t count = 0;
    (*this)(count);
    items.resize(static_cast<size_t>(count));
    for (at::Tensor& item : items) (*this)(item);
  }
};

template <class Known>
bool is(const optim::Optimizer& optimizer) {
  return unwrapped_type(optimizer) == typeid(Known);
}

// Calls `work` with an example of the state that this optimizer keeps. False: it is not known.
template <class Work>
bool with_state_of(const optim::Optimizer& optimizer, const Work& work) {
  if (is<optim::SGD>(optimizer)) return work(optim::SGDParamState()), true;
  if (is<optim::Adam>(optimizer)) return work(optim::AdamParamState()), true;
  if (is<optim::AdamW>(optimizer)) return work(optim::AdamWParamState()), true;
  if (is<optim::Adagrad>(optimizer)) return work(optim::AdagradParamState()), true;
  if (is<optim::RMSprop>(optimizer)) return work(optim::RMSpropParamState()), true;
  if (is<optim::LBFGS>(optimizer)) return work(optim::LBFGSParamState()), true;
  return false;
}

std::vector<at::Tensor> all_parameters(const optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

std::string group_key(size_t index) { return core::concat("group", index); }

torch::serialize::InputArchive read_archive(const std::string& bytes,
                                            std::optional<c10::Device> device = {}) {
  torch::serialize::InputArchive archive;
  archive.load_from(bytes.data(), bytes.size(), device);
  return archive;
}

}  // namespace

bool is_known_optimizer(const optim::Optimizer& optimizer) {
  return with_state_of(optimizer, [](const auto& /*example*/) {});
}

c10::Device device_of_parameters(const optim::Optimizer& optimizer) {
  const std::vector<at::Tensor> parameters = all_parameters(optimizer);
  return parameters.empty() ? c10::Device(c10::kCPU) : parameters.front().device();
}

TakenApart take_apart(optim::Optimizer& optimizer) {
  const PlainMode plain;
  Writer writer;
  const std::vector<at::Tensor> parameters = all_parameters(optimizer);
  with_state_of(optimizer, [&]<class State>(const State& /*example*/) {
    for (size_t i = 0; i < parameters.size(); ++i) {
      const auto entry = optimizer.state().find(parameters[i].unsafeGetTensorImpl());
      if (entry == optimizer.state().end()) continue;
      writer(static_cast<int64_t>(i));
      visit(writer, static_cast<State&>(*entry->second));
    }
  });
  writer(int64_t{-1});
  torch::serialize::OutputArchive archive;
  archive.write("integers", at::tensor(writer.integers, at::kLong));
  archive.write("reals", at::tensor(writer.reals, at::kDouble));
  for (size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    torch::serialize::OutputArchive group(archive.compilation_unit());
    std::as_const(optimizer.param_groups()[i]).options().serialize(group);
    archive.write(group_key(i), group);
  }
  std::ostringstream stream;
  archive.save_to(stream);
  return {std::move(stream).str(), std::move(writer.tensors)};
}

void load_saved(optim::Optimizer& optimizer, const std::string& bytes) {
  const PlainMode plain;
  torch::serialize::InputArchive archive = read_archive(bytes, device_of_parameters(optimizer));
  auto before = std::exchange(optimizer.state(), {});
  try {
    optimizer.load(archive);
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

PutTogether::PutTogether(optim::Optimizer& optimizer, std::string bytes)
    : optimizer_(optimizer), bytes_(std::move(bytes)) {
  const PlainMode plain;
  torch::serialize::InputArchive archive = read_archive(bytes_);
  at::Tensor integers;
  at::Tensor reals;
  archive.read("integers", integers);
  archive.read("reals", reals);
  const std::vector<at::Tensor> parameters = all_parameters(optimizer);
  Reader reader{integers.const_data_ptr<int64_t>(), reals.const_data_ptr<double>(), tensors_, {}};
  with_state_of(optimizer, [&]<class State>(const State& /*example*/) {
    for (int64_t index = 0; reader(index), index >= 0;) {
      reader.parameter = parameters.at(static_cast<size_t>(index)).detach();
      auto state = std::make_unique<State>();
      visit(reader, *state);
      entries_.emplace_back(parameters[static_cast<size_t>(index)].unsafeGetTensorImpl(),
                            std::move(state));
    }
  });
}

void PutTogether::install() {
  torch::serialize::InputArchive archive = read_archive(bytes_);
  for (size_t i = 0; i < optimizer_.param_groups().size(); ++i) {
    torch::serialize::InputArchive group;
    archive.read(group_key(i), group);
    optimizer_.param_groups()[i].options().serialize(group);
  }
  optimizer_.state().clear();
  for (auto& [parameter, state] : entries_) optimizer_.state()[parameter] = std::move(state);
}

}  // namespace horon::torch_detail

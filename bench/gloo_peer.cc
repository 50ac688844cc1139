#include "horon/bench/gloo_peer.h"

#include <array>
#include <cstdint>
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/scatter.h>
#include <gloo/transport/address.h>
#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <utility>
#include <vector>

#include "horon/bench/gloo_place.h"
#include "horon/core/base/error.h"
#include "horon/core/base/host_name.h"
#include "horon/ops/host/host_kernels.h"

namespace horon::bench {
namespace {

// Gloo's context whose ranks have told each other their addresses by MPI.
class ConnectedContext final : public gloo::Context {
 public:
  ConnectedContext(MpiPeer& mpi, int own_rank, std::shared_ptr<gloo::transport::Device> device)
      : gloo::Context(own_rank, mpi.size()) {
    auto connections = device->createContext(rank, size);
    connections->setTimeout(getTimeout());
    std::string mine;  // for each other rank an address of the same length
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const std::vector<char> address = connections->createPair(other)->address().bytes();
      mine.append(address.data(), address.size());
    }
    const std::vector<std::string> all = mpi.gather_text(mine);
    const size_t length = mine.size() / static_cast<size_t>(size - 1);
    for (int other = 0; other < size; ++other) {
      if (other == rank) continue;
      const auto place = static_cast<size_t>(rank < other ? rank : rank - 1);
      const std::string theirs = all[static_cast<size_t>(other)].substr(place * length, length);
      connections->getPair(other)->connect({theirs.begin(), theirs.end()});
    }
    device_ = std::move(device);
    transportContext_ = std::move(connections);
  }
};

template <DataType kDtype, ReduceOp kOp>
void reduce_into(void* to, const void* a, const void* b, size_t count) {
  ops::Reduction reduction;
  reduction.dtype = kDtype;
  reduction.op = kOp;
  auto* const result = static_cast<std::byte*>(to);
  const std::array inputs = {static_cast<const std::byte*>(a), static_cast<const std::byte*>(b)};
  ops::reduce_many(reduction, inputs, {&result, 1}, static_cast<int64_t>(count));
}

using ReduceFunction = void (*)(void*, const void*, const void*, size_t);

template <DataType kDtype>
ReduceFunction function_for(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
    case ReduceOp::Average:
      return reduce_into<kDtype, ReduceOp::Sum>;
    case ReduceOp::Min:
      return reduce_into<kDtype, ReduceOp::Min>;
    case ReduceOp::Max:
      return reduce_into<kDtype, ReduceOp::Max>;
    case ReduceOp::Product:
      return reduce_into<kDtype, ReduceOp::Product>;
    case ReduceOp::BitAnd:
      return reduce_into<kDtype, ReduceOp::BitAnd>;
    case ReduceOp::BitOr:
      return reduce_into<kDtype, ReduceOp::BitOr>;
    case ReduceOp::BitXor:
      return reduce_into<kDtype, ReduceOp::BitXor>;
    case ReduceOp::Adasum:
      break;  // not timed
  }
  HORON_CHECK(false, "unknown reduction");
}

ReduceFunction function_of(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::Float32:
      return function_for<DataType::Float32>(op);
    case DataType::Float64:
      return function_for<DataType::Float64>(op);
    case DataType::Float16:
      return function_for<DataType::Float16>(op);
    case DataType::BFloat16:
      return function_for<DataType::BFloat16>(op);
    case DataType::Int8:
      return function_for<DataType::Int8>(op);
    case DataType::UInt8:
      return function_for<DataType::UInt8>(op);
    case DataType::Int16:
      return function_for<DataType::Int16>(op);
    case DataType::Int32:
      return function_for<DataType::Int32>(op);
    case DataType::Int64:
      return function_for<DataType::Int64>(op);
    case DataType::Bool:
      return function_for<DataType::Bool>(op);
  }
  HORON_CHECK(false, "unknown element type");
}

class GlooPeer final : public Peer {
 public:
  explicit GlooPeer(std::shared_ptr<gloo::Context> context) : context_(std::move(context)) {}

  int size() const override { return context_->size; }

  void allreduce(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
                 ReduceOp op) override {
    gloo::AllreduceOptions options(context_);
    with_type(dtype, [&]<class T>(T*) {
      if (input != output) options.setInput(as<T>(input), size_t_of(count));
      options.setOutput(as<T>(output), size_t_of(count));
    });
    options.setReduceFunction(function_of(dtype, op));
    options.setTag(next_tag());
    gloo::allreduce(options);
  }

  void broadcast(std::byte* data, int64_t count, DataType dtype, int root) override {
    gloo::BroadcastOptions options(context_);
    options.setOutput(as<char>(data), bytes_of(count, dtype));
    options.setRoot(root);
    options.setTag(next_tag());
    gloo::broadcast(options);
  }

  void allgather(const std::byte* input, std::byte* output, int64_t count,
                 DataType dtype) override {
    gloo::AllgatherOptions options(context_);
    options.setInput(as<char>(input), bytes_of(count, dtype));
    options.setOutput(as<char>(output), bytes_of(count * size(), dtype));
    options.setTag(next_tag());
    gloo::allgather(options);
  }

  void reducescatter(const std::byte*, std::byte*, int64_t, DataType, ReduceOp) override {
    HORON_CHECK(false, "Gloo has no reducescatter");
  }

  void alltoall(const std::byte* input, std::byte* output, int64_t count, DataType dtype) override {
    gloo::AlltoallOptions options(context_);
    options.setInput(as<char>(input), bytes_of(count * size(), dtype));
    options.setOutput(as<char>(output), bytes_of(count * size(), dtype));
    options.setTag(next_tag());
    gloo::alltoall(options);
  }

  void gather(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
              int root) override {
    gloo::GatherOptions options(context_);
    options.setInput(as<char>(input), bytes_of(count, dtype));
    if (context_->rank == root) {
      options.setOutput(as<char>(output), bytes_of(count * size(), dtype));
    }
    options.setRoot(root);
    options.setTag(next_tag());
    gloo::gather(options);
  }

  void scatter(const std::byte* input, std::byte* output, int64_t count, DataType dtype,
               int root) override {
    gloo::ScatterOptions options(context_);
    if (context_->rank == root) {
      std::vector<char*> blocks;
      for (int64_t rank = 0; rank < size(); ++rank) {
        blocks.push_back(as<char>(input) + rank * count * static_cast<int64_t>(size_of(dtype)));
      }
      options.setInputs(blocks, bytes_of(count, dtype));
    }
    options.setOutput(as<char>(output), bytes_of(count, dtype));
    options.setRoot(root);
    options.setTag(next_tag());
    gloo::scatter(options);
  }

  void barrier() override {
    gloo::BarrierOptions options(context_);
    options.setTag(next_tag());
    gloo::barrier(options);
  }

 private:
  // Gloo cuts a message at multiples of the size of an element, and asks for no more of a type.
  template <class Visit>
  static void with_type(DataType dtype, const Visit& visit) {
    switch (size_of(dtype)) {
      case 1:
        return visit(static_cast<uint8_t*>(nullptr));
      case 2:
        return visit(static_cast<uint16_t*>(nullptr));
      case 4:
        return visit(static_cast<uint32_t*>(nullptr));
      default:
        return visit(static_cast<uint64_t*>(nullptr));
    }
  }
  // Gloo takes inputs that it does not write as pointers without const.
  template <class T>
  static T* as(const std::byte* memory) {
    return reinterpret_cast<T*>(const_cast<std::byte*>(memory));
  }
  static size_t size_t_of(int64_t count) { return static_cast<size_t>(count); }
  static size_t bytes_of(int64_t count, DataType dtype) {
    return size_t_of(count) * size_of(dtype);
  }
  uint32_t next_tag() { return tag_ = (tag_ + 1) % (1U << 20); }

  const std::shared_ptr<gloo::Context> context_;
  uint32_t tag_ = 0;
};

}  // namespace

std::unique_ptr<Peer> make_gloo_peer(MpiPeer& mpi, int rank, CollectiveKind kind,
                                     const std::string& interface, std::string& unavailable) {
  const GlooPlace place = find_gloo_place(kind, mpi.gather_text(core::host_name()), interface);
  unavailable = place.unavailable;
  if (!unavailable.empty()) return nullptr;
  gloo::transport::tcp::attr where;
  where.iface = place.interface;
  return std::make_unique<GlooPeer>(
      std::make_shared<ConnectedContext>(mpi, rank, gloo::transport::tcp::CreateDevice(where)));
}

}  // namespace horon::bench

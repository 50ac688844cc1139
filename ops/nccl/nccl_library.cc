#include "horon/ops/nccl/nccl_library.h"

#include <algorithm>
#include <dlfcn.h>
#include <utility>

#include <nccl.h>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

// The functions of the library that was found.
struct Functions {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config = nullptr;
  decltype(&ncclCommGetAsyncError) comm_get_async_error = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclCommFinalize) comm_finalize = nullptr;
  decltype(&ncclCommDestroy) comm_destroy = nullptr;
  decltype(&ncclCommAbort) comm_abort = nullptr;
  decltype(&ncclMemAlloc) mem_alloc = nullptr;
  decltype(&ncclMemFree) mem_free = nullptr;
  // Declared here, since the oldest nccl.h that Horon is built with lacks them, and the type of
  // windows.
  ncclResult_t (*comm_window_register)(ncclComm_t comm, void* memory, size_t bytes, void** window,
                                       int flags) = nullptr;
  ncclResult_t (*comm_window_deregister)(ncclComm_t comm, void* window) = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) recv = nullptr;
};

constexpr int kWindowsSince = 22703;       // as NCCL_VERSION_CODE
constexpr int kSameOffsetsOnAllRanks = 1;  // NCCL_WIN_COLL_SYMMETRIC

struct Library {
  Functions functions;
  NcclStatus status;
};

template <class Function>
void look_up(void* library, const char* name, Function& function, std::string& missing) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr && missing.empty()) missing = name;
}

std::string look_up_all(void* library, Functions& functions) {
  std::string missing;
  look_up(library, "ncclGetVersion", functions.get_version, missing);
  look_up(library, "ncclGetUniqueId", functions.get_unique_id, missing);
  look_up(library, "ncclCommInitRankConfig", functions.comm_init_rank_config, missing);
  look_up(library, "ncclCommGetAsyncError", functions.comm_get_async_error, missing);
  look_up(library, "ncclGetLastError", functions.get_last_error, missing);
  look_up(library, "ncclGetErrorString", functions.get_error_string, missing);
  look_up(library, "ncclCommFinalize", functions.comm_finalize, missing);
  look_up(library, "ncclCommDestroy", functions.comm_destroy, missing);
  look_up(library, "ncclCommAbort", functions.comm_abort, missing);
  look_up(library, "ncclMemAlloc", functions.mem_alloc, missing);
  look_up(library, "ncclMemFree", functions.mem_free, missing);
  look_up(library, "ncclGroupStart", functions.group_start, missing);
  look_up(library, "ncclGroupEnd", functions.group_end, missing);
  look_up(library, "ncclAllReduce", functions.all_reduce, missing);
  look_up(library, "ncclReduce", functions.reduce, missing);
  look_up(library, "ncclReduceScatter", functions.reduce_scatter, missing);
  look_up(library, "ncclBroadcast", functions.broadcast, missing);
  look_up(library, "ncclAllGather", functions.all_gather, missing);
  look_up(library, "ncclSend", functions.send, missing);
  look_up(library, "ncclRecv", functions.recv, missing);
  std::string too_old;  // which is no fault
  look_up(library, "ncclCommWindowRegister", functions.comm_window_register, too_old);
  look_up(library, "ncclCommWindowDeregister", functions.comm_window_deregister, too_old);
  return missing;
}

Library load() {
  Library loaded;
  NcclStatus& status = loaded.status;
  status.header_version = NCCL_VERSION_CODE;
  constexpr const char* kName = "libnccl.so.2";
  void* library = ::dlopen(kName, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) library = ::dlopen(kName, RTLD_NOW);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    status.unavailable = reason != nullptr ? reason : "libnccl.so.2 was not found";
    return loaded;
  }
  const std::string missing = look_up_all(library, loaded.functions);
  if (!missing.empty()) {
    status.unavailable = core::concat("NCCL 2.19 or later is needed: this one has no ", missing);
    return loaded;
  }
  if (loaded.functions.get_version(&status.version) != ncclSuccess) {
    status.unavailable = "ncclGetVersion failed";
  }
  status.has_windows = status.version >= kWindowsSince &&
                       loaded.functions.comm_window_register != nullptr &&
                       loaded.functions.comm_window_deregister != nullptr;
  Dl_info info;
  if (::dladdr(reinterpret_cast<void*>(loaded.functions.get_version), &info) != 0) {
    status.path = info.dli_fname;
  }
  return loaded;
}

const Library& the_library() {
  static const Library library = load();
  return library;
}

ncclComm_t as_comm(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
cudaStream_t as_stream(CudaStream stream) { return static_cast<cudaStream_t>(stream); }

ncclDataType_t as_nccl(DataType dtype) {
  switch (dtype) {
    case DataType::Float32:
      return ncclFloat32;
    case DataType::Float64:
      return ncclFloat64;
    case DataType::Float16:
      return ncclFloat16;
    case DataType::BFloat16:
      return ncclBfloat16;
    case DataType::Int8:
      return ncclInt8;
    case DataType::UInt8:
    case DataType::Bool:
      return ncclUint8;
    case DataType::Int32:
      return ncclInt32;
    case DataType::Int64:
      return ncclInt64;
    case DataType::Int16:
      break;
  }
  throw Error(ErrorCode::Internal, core::concat("NCCL has no ", to_string(dtype)));
}

ncclRedOp_t as_nccl(ReduceOp op) {
  switch (op) {
    case ReduceOp::Sum:
      return ncclSum;
    case ReduceOp::Min:
      return ncclMin;
    case ReduceOp::Max:
      return ncclMax;
    case ReduceOp::Product:
      return ncclProd;
    case ReduceOp::Average:
    case ReduceOp::BitAnd:
    case ReduceOp::BitOr:
    case ReduceOp::BitXor:
    case ReduceOp::Adasum:
      break;
  }
  throw Error(ErrorCode::Internal, core::concat("NCCL is not asked for ", to_string(op)));
}

class Nccl final : public NcclApi {
 public:
  explicit Nccl(std::shared_ptr<CudaApi> cuda)
      : library_(the_library()), call_(library_.functions), cuda_(std::move(cuda)) {}

  int version() const override { return library_.status.version; }

  NcclUniqueId unique_id() override {
    static_assert(sizeof(ncclUniqueId) == sizeof(NcclUniqueId));
    ncclUniqueId id;
    check("ncclGetUniqueId", call_.get_unique_id(&id), nullptr);
    NcclUniqueId bytes;
    std::copy(std::begin(id.internal), std::end(id.internal), bytes.begin());
    return bytes;
  }

  NcclComm begin_init(int size, const NcclUniqueId& bytes, int rank) override {
    ncclUniqueId id;
    std::copy(bytes.begin(), bytes.end(), std::begin(id.internal));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    const ncclResult_t result = call_.comm_init_rank_config(&comm, size, id, rank, &config);
    const bool failed = result != ncclSuccess && result != ncclInProgress;
    if (failed && comm != nullptr) (void)call_.comm_abort(comm);  // made, and of no use
    check("ncclCommInitRankConfig", result, nullptr);
    return comm;
  }

  bool idle(NcclComm comm) override {
    ncclResult_t state = ncclSuccess;
    check("ncclCommGetAsyncError", call_.comm_get_async_error(as_comm(comm), &state), comm);
    check("NCCL", state, comm);
    return state != ncclInProgress;
  }

  void begin_finalize(NcclComm comm) override {
    check("ncclCommFinalize", call_.comm_finalize(as_comm(comm)), comm);
  }
  void destroy(NcclComm comm) noexcept override { (void)call_.comm_destroy(as_comm(comm)); }
  void abort(NcclComm comm) noexcept override { (void)call_.comm_abort(as_comm(comm)); }

  std::byte* allocate(size_t bytes) override {
    const CudaDeviceGuard guard(*cuda_);
    void* memory = nullptr;
    return call_.mem_alloc(&memory, bytes) == ncclSuccess ? static_cast<std::byte*>(memory)
                                                          : nullptr;
  }
  void free(std::byte* memory) noexcept override { (void)call_.mem_free(memory); }

  bool has_windows() const override { return library_.status.has_windows; }
  void begin_register(NcclComm comm, std::byte* memory, size_t bytes,
                      NcclWindowHandle* handle) override {
    check("ncclCommWindowRegister",
          call_.comm_window_register(as_comm(comm), memory, bytes, handle, kSameOffsetsOnAllRanks),
          comm);
  }
  void deregister(NcclComm comm, NcclWindowHandle handle) noexcept override {
    (void)call_.comm_window_deregister(as_comm(comm), handle);
  }

  void begin_group() override { check("ncclGroupStart", call_.group_start(), nullptr); }
  void end_group() override { check("ncclGroupEnd", call_.group_end(), nullptr); }

  void allreduce(NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                 DataType dtype, ReduceOp op, CudaStream stream) override {
    check("ncclAllReduce",
          call_.all_reduce(input, output, static_cast<size_t>(count), as_nccl(dtype), as_nccl(op),
                           as_comm(comm), as_stream(stream)),
          comm);
  }
  void reduce(NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
              DataType dtype, ReduceOp op, int root, CudaStream stream) override {
    check("ncclReduce",
          call_.reduce(input, output, static_cast<size_t>(count), as_nccl(dtype), as_nccl(op), root,
                       as_comm(comm), as_stream(stream)),
          comm);
  }
  void reduce_scatter(NcclComm comm, const std::byte* input, std::byte* output, int64_t count,
                      DataType dtype, ReduceOp op, CudaStream stream) override {
    check("ncclReduceScatter",
          call_.reduce_scatter(input, output, static_cast<size_t>(count), as_nccl(dtype),
                               as_nccl(op), as_comm(comm), as_stream(stream)),
          comm);
  }
  void broadcast(NcclComm comm, const std::byte* input, std::byte* output, int64_t bytes, int root,
                 CudaStream stream) override {
    check("ncclBroadcast",
          call_.broadcast(input, output, static_cast<size_t>(bytes), ncclUint8, root, as_comm(comm),
                          as_stream(stream)),
          comm);
  }
  void allgather(NcclComm comm, const std::byte* input, std::byte* output, int64_t bytes,
                 CudaStream stream) override {
    check("ncclAllGather",
          call_.all_gather(input, output, static_cast<size_t>(bytes), ncclUint8, as_comm(comm),
                           as_stream(stream)),
          comm);
  }
  void send(NcclComm comm, const std::byte* data, int64_t bytes, int to,
            CudaStream stream) override {
    check("ncclSend",
          call_.send(data, static_cast<size_t>(bytes), ncclUint8, to, as_comm(comm),
                     as_stream(stream)),
          comm);
  }
  void receive(NcclComm comm, std::byte* data, int64_t bytes, int from,
               CudaStream stream) override {
    check("ncclRecv",
          call_.recv(data, static_cast<size_t>(bytes), ncclUint8, from, as_comm(comm),
                     as_stream(stream)),
          comm);
  }

 private:
  // NCCL is asked for its own words of the last error, which name the peer or the system call.
  void check(const char* call, ncclResult_t result, NcclComm comm) const {
    if (result == ncclSuccess || result == ncclInProgress) return;
    const char* const words = call_.get_last_error(as_comm(comm));
    throw Error(ErrorCode::OperationFailed,
                core::concat(call, ": ", call_.get_error_string(result), ": ",
                             words != nullptr ? words : "", " (NCCL_DEBUG=WARN tells more)"));
  }

  const Library& library_;
  const Functions& call_;
  const std::shared_ptr<CudaApi> cuda_;
};

}  // namespace

const NcclStatus& nccl_status() { return the_library().status; }

std::shared_ptr<NcclApi> open_nccl(const std::shared_ptr<CudaApi>& cuda) {
  const NcclStatus& status = nccl_status();
  if (!status.unavailable.empty()) {
    throw Error(ErrorCode::Config, core::concat("no NCCL: ", status.unavailable));
  }
  return std::make_shared<Nccl>(cuda);
}

}  // namespace horon::ops

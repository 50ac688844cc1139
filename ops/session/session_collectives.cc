#include "horon/ops/session/session_collectives.h"

#include <memory>
#include <utility>

#include "horon/core/base/error.h"
#include "horon/core/base/text.h"

namespace horon::ops {

void meet(core::Runtime& runtime, const std::string& name, const std::string& what,
          const JobGpu* gpu) {
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Barrier;
  spec->parts = {{what, {0}}};
  core::Submission submission;
  submission.name = name;
  if (gpu != nullptr && gpu->available() && gpu->uses_nccl()) {
    spec->device = DeviceKind::Cuda;
    submission.device_index = gpu->device();
  }
  submission.spec = std::move(spec);
  try {
    (void)runtime.run(std::move(submission))->get();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::Mismatch) throw;
    throw Error(error.code(), core::concat(error.what(), " Every rank must call ",
                                           name.substr(name.find('.') + 1),
                                           "() with the same arguments, in the same order."));
  }
}

std::vector<std::string> gather_from_all(core::Runtime& runtime, const std::string& name,
                                         const std::string& mine) {
  // Kept by the submission: after a failure a peer or MPI may still read and write it.
  struct Memory {
    std::string mine;
    std::string all;
  };
  const auto memory = std::make_shared<Memory>(Memory{mine, {}});
  const auto bytes = static_cast<int64_t>(memory->mine.size());
  auto spec = std::make_shared<core::EntrySpec>();
  spec->kind = CollectiveKind::Allgather;
  spec->dtype = DataType::UInt8;
  spec->parts = {{name, {bytes}}};
  core::Submission submission;
  submission.name = name;
  submission.spec = std::move(spec);
  submission.memory = {{reinterpret_cast<const std::byte*>(memory->mine.data()), nullptr, bytes}};
  submission.allocate_output = [memory](size_t, int64_t elements, core::MemoryQueue&) {
    memory->all.resize(static_cast<size_t>(elements));
    return reinterpret_cast<std::byte*>(memory->all.data());
  };
  submission.keep_alive = memory;
  const auto handle = runtime.submit(std::move(submission));
  std::vector<std::string> blocks;
  size_t begin = 0;
  for (const int64_t length : handle->get().received) {
    blocks.push_back(memory->all.substr(begin, static_cast<size_t>(length)));
    begin += static_cast<size_t>(length);
  }
  return blocks;
}

}  // namespace horon::ops

#include "horon/ops/nccl/job_gpu.h"

#include <algorithm>
#include <map>
#include <utility>

#include "horon/core/base/all_ranks.h"
#include "horon/core/base/current_error.h"
#include "horon/core/base/rank_names.h"
#include "horon/core/base/text.h"

namespace horon::ops {
namespace {

using core::concat;
using GpuFacts = JobGpu::Facts;

// On a host with fewer devices than ranks, ranks share a device: judge() finds that.
int device_of(int local_rank, int devices) { return devices > 0 ? local_rank % devices : -1; }

GpuFacts facts_of_this_rank(int local_rank, GpuLibraries& libraries) {
  GpuFacts facts;
  try {
    const CudaStatus cuda = libraries.cuda();
    facts.why_not = cuda.unavailable;
    const int device = device_of(local_rank, cuda.devices);
    if (device < 0) return facts;
    facts.bus = libraries.bus_of(device);
    facts.device = device;
    facts.nccl_host_id = libraries.nccl_host_id();
    const NcclStatus nccl = libraries.nccl();
    facts.nccl_version = nccl.version;
    facts.why_not = nccl.unavailable;
  } catch (...) {
    facts.why_not = core::current_error().what();
  }
  return facts;
}

// One fact a line; the reason is last.
std::string facts_as_text(const GpuFacts& facts) {
  return concat(facts.device, "\n", facts.nccl_version, "\n", facts.bus, "\n", facts.nccl_host_id,
                "\n", facts.why_not);
}

GpuFacts facts_from_text(const std::string& text) {
  std::vector<std::string> fields;
  size_t begin = 0;
  for (int field = 0; field < 4; ++field) {
    const size_t end = text.find('\n', begin);
    HORON_CHECK(end != std::string::npos, "all ranks send all facts");
    fields.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  GpuFacts facts;
  facts.device = std::stoi(fields[0]);
  facts.nccl_version = std::stoi(fields[1]);
  facts.bus = fields[2];
  facts.nccl_host_id = fields[3];
  facts.why_not = text.substr(begin);
  return facts;
}

template <class Wanted>
std::vector<int> ranks_where(const std::vector<GpuFacts>& facts, const Wanted& wanted) {
  std::vector<int> found;
  for (size_t rank = 0; rank < facts.size(); ++rank) {
    if (wanted(facts[rank])) found.push_back(static_cast<int>(rank));
  }
  return found;
}

bool has_gpu(const GpuFacts& facts) { return facts.device >= 0; }

std::string fault_of_missing_gpus(const std::vector<GpuFacts>& facts,
                                  const std::vector<int>& ranks) {
  std::vector<int> without;
  for (const int rank : ranks) {
    if (!has_gpu(facts[static_cast<size_t>(rank)])) without.push_back(rank);
  }
  if (without.empty()) return "";
  const std::string& why = facts[static_cast<size_t>(without.front())].why_not;
  if (without.size() == facts.size()) return concat("no rank has a GPU: ", why);
  const std::string who = core::name_ranks(without);
  const std::string text =
      concat(who, without.size() == 1 ? " has" : " have", " no GPU (", why, ")");
  if (without.size() == ranks.size()) return text;
  return concat(text, ", the others have one: make a process set of the ranks with a GPU, or let ",
                "all ranks take part by way of the host with HORON_GPU_COLLECTIVES=host");
}

// NCCL refuses two ranks on one GPU. Like NCCL, this identifies a GPU by its host (or NCCL_HOSTID,
// if that is set) and its place on the bus.
std::string fault_of_shared_gpus(const std::vector<GpuFacts>& ranks,
                                 const std::vector<int>& host_of) {
  std::map<std::pair<std::string, std::string>, std::vector<int>> users;
  for (const int rank : ranks_where(ranks, has_gpu)) {
    const GpuFacts& facts = ranks[static_cast<size_t>(rank)];
    const std::string host = facts.nccl_host_id.empty()
                                 ? concat("host ", host_of[static_cast<size_t>(rank)])
                                 : facts.nccl_host_id;
    users[{host, facts.bus}].push_back(rank);
  }
  for (const auto& [place, sharing] : users) {
    if (sharing.size() < 2) continue;
    return concat(core::name_ranks(sharing), " share the GPU at ", place.second,
                  ", and NCCL needs one for each rank: start no more ranks on a host than it has "
                  "GPUs (slices of one GPU, MIG, count as one), or give each rank its own by "
                  "CUDA_VISIBLE_DEVICES");
  }
  return "";
}

}  // namespace

std::string JobGpu::judge(const std::vector<Facts>& facts, const std::vector<int>& host_of) {
  const auto no_nccl = ranks_where(
      facts, [](const Facts& of_rank) { return has_gpu(of_rank) && !of_rank.why_not.empty(); });
  if (!no_nccl.empty()) {
    return concat(core::name_ranks(no_nccl),
                  " can't use NCCL: ", facts[static_cast<size_t>(no_nccl.front())].why_not);
  }
  const std::vector<int> owners = ranks_where(facts, has_gpu);
  if (owners.empty()) return "";
  const int version = facts[static_cast<size_t>(owners.front())].nccl_version;
  const auto others = ranks_where(facts, [&](const Facts& of_rank) {
    return has_gpu(of_rank) && of_rank.nccl_version != version;
  });
  if (!others.empty()) {
    return concat("NCCL differs between ranks: rank ", owners.front(), " has version code ",
                  version, ", ", core::name_ranks(others), others.size() == 1 ? " has " : " have ",
                  facts[static_cast<size_t>(others.front())].nccl_version,
                  "; install one version on all hosts");
  }
  return fault_of_shared_gpus(facts, host_of);
}

std::string JobGpu::unavailable(const std::vector<int>& ranks) const {
  if (insists_on_nccl_ && !uses_nccl()) return nccl_unavailable_;
  return mixed(ranks) ? "" : fault_of_missing_gpus(facts_, ranks);
}

bool JobGpu::owns(int rank) const {
  return std::binary_search(owners_.begin(), owners_.end(), rank);
}

bool JobGpu::mixed(const std::vector<int>& ranks) const {
  return insists_on_host_ && any_device(ranks) &&
         !std::all_of(ranks.begin(), ranks.end(), [this](int rank) { return owns(rank); });
}

std::string JobGpu::unavailable_alone(const std::vector<int>& ranks) const {
  if (keeps_order_of_sets()) return unavailable(ranks);
  return "its members made it alone; for GPUs all ranks must call add_process_set() or "
         "order_sets_on_gpus() once before that";
}

bool JobGpu::any_device(const std::vector<int>& ranks) const {
  return std::any_of(ranks.begin(), ranks.end(), [this](int rank) { return owns(rank); });
}

std::shared_ptr<JobGpu> JobGpu::find(const core::Bootstrap& bootstrap,
                                     std::shared_ptr<GpuLibraries> libraries,
                                     const std::string& collectives, bool shared_memory) {
  const core::Topology& topology = bootstrap.topology();
  std::shared_ptr<JobGpu> gpu(new JobGpu);
  gpu->mine_ = facts_of_this_rank(topology.local_rank, *libraries);
  gpu->libraries_ = std::move(libraries);
  for (const std::string& text :
       bootstrap.allgather(core::Bootstrap::Among::Job, facts_as_text(gpu->mine_))) {
    gpu->facts_.push_back(facts_from_text(text));
  }
  gpu->owners_ = ranks_where(gpu->facts_, has_gpu);
  gpu->nccl_unavailable_ = collectives == "host" ? "HORON_GPU_COLLECTIVES=host asks for the host"
                                                 : judge(gpu->facts_, topology.host_of);
  gpu->insists_on_nccl_ = collectives == "nccl";
  gpu->insists_on_host_ = collectives == "host";
  gpu->unavailable_ = gpu->unavailable(core::all_ranks(topology.size));
  const bool one_rank_each = topology.host_count() == topology.size;
  gpu->host_drives_allreduce_ = collectives == "hierarchical" && topology.host_count() > 1 &&
                                (one_rank_each || shared_memory);
  gpu->reduces_in_halves_ = gpu->host_drives_allreduce_ && !one_rank_each;
  return gpu;
}

JobGpu::JobGpu(std::shared_ptr<CudaApi> cuda, std::shared_ptr<NcclApi> nccl)
    : cuda_(std::move(cuda)), nccl_(std::move(nccl)) {
  mine_.device = cuda_->device();
  mine_.nccl_version = nccl_->version();
}

bool JobGpu::is_open() {
  {
    const std::lock_guard lock(mutex_);
    if (cuda_ != nullptr) {
      stay_out_of_captures();
      return true;
    }
  }
  if (background_ == nullptr) {
    background_ = std::make_unique<BackgroundCall<std::shared_ptr<CudaApi>>>(
        [gpu = shared_from_this()] { return gpu->cuda(); });
  }
  return background_->take().has_value() && is_open();
}

std::shared_ptr<CudaApi> JobGpu::cuda() {
  {
    const std::lock_guard lock(mutex_);
    if (cuda_ != nullptr) {  // another thread may have opened it
      stay_out_of_captures();
      return cuda_;
    }
  }
  const std::lock_guard opening(opening_);
  std::shared_ptr<CudaApi> opened = cuda_;  // written only under `opening_`
  if (opened == nullptr) opened = libraries_->open_cuda(mine_.device);
  const std::lock_guard lock(mutex_);
  cuda_ = opened;
  stay_out_of_captures();
  return opened;
}

std::shared_ptr<NcclApi> JobGpu::nccl() {
  const std::shared_ptr<CudaApi> device = cuda();
  const std::lock_guard opening(opening_);
  if (nccl_ == nullptr) nccl_ = libraries_->open_nccl(device);
  return nccl_;
}

void JobGpu::stay_out_of_captures() noexcept {
  if (seated_ != std::this_thread::get_id() || capture_mode_before_ || cuda_ == nullptr) return;
  capture_mode_before_ = cuda_->exchange_capture_mode(CudaApi::kStaysOutOfCaptures);
}

void JobGpu::sits_down() noexcept {
  const std::lock_guard lock(mutex_);
  seated_ = std::this_thread::get_id();
  stay_out_of_captures();
}

void JobGpu::gets_up() noexcept {
  const std::lock_guard lock(mutex_);
  seated_ = {};
  if (capture_mode_before_) cuda_->exchange_capture_mode(*capture_mode_before_);
  capture_mode_before_.reset();
}

}  // namespace horon::ops

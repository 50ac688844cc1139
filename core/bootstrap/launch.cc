#include "horon/core/bootstrap/launch.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <unistd.h>

#include "horon/core/base/config.h"
#include "horon/core/base/log.h"
#include "horon/core/base/parse_number.h"
#include "horon/core/base/text.h"

namespace horon::core {
namespace {

bool has_started_several(const std::string& count) { return parse_number(count).value_or(1) > 1; }

}  // namespace

std::string launch_fault(int world_size) {
  if (world_size > 1) return "";
  // The nearest launcher first: mpirun may run in a step of srun's.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const std::string count = environment_value(name);
    if (count.empty()) continue;
    if (!has_started_several(count)) return "";
    return concat(
        "the launcher has started ", count, " processes (", name, "), but MPI sees only ",
        "this one, so each of them is a job of one rank: start the program with the mpirun ",
        "of this MPI library, or with srun --mpi=pmix (Open MPI) or --mpi=pmi2 (MPICH); ",
        "srun --mpi=list shows what this Slurm has");
  }
  // Slurm numbers the batch script as well, but it is no step.
  const std::string tasks = environment_value("SLURM_NTASKS");
  if (environment_has("SLURM_PROCID") && !environment_has("SLURM_STEP_ID") &&
      has_started_several(tasks)) {
    return concat("this Slurm job has ", tasks, " tasks (SLURM_NTASKS), but its batch script ",
                  "started this program directly, so it is a job of one rank: start it with srun ",
                  "--mpi=pmix, mpirun or horonrun");
  }
  return "";
}

void warn_of_launch(int world_size) {
  const std::string fault = launch_fault(world_size);
  if (!fault.empty()) log(LogLevel::Warn, fault);
}

std::string_view launch_remark(int world_size) {
  if (world_size > 1 || !launch_fault(world_size).empty()) return "";
  return ". No launcher (mpirun, srun) started this job, or it started one process only";
}

int cores_of_mpirun() {
  const pid_t parent = getppid();
  std::ifstream file(concat("/proc/", parent, "/comm"));
  std::string name;
  std::getline(file, name);
  // Of Open MPI 4, of Open MPI 5, and what they start on other hosts.
  const auto names = {"mpirun", "mpiexec", "orterun", "orted", "prterun", "prte", "prted"};
  if (std::ranges::find(names, name) == names.end()) return 0;
  cpu_set_t cores;
  return sched_getaffinity(parent, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

std::string missing_pmix(std::string_view mpi_version) {
  if (!mpi_version.starts_with("Open MPI") || !environment_has("SLURM_STEP_ID")) return "";
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}) {
    if (environment_has(name)) return "";
  }
  if (environment_value("SLURM_PROCID") != "0") return "";  // which says it for all
  return "srun started this program without PMIx, which Open MPI needs to find the ranks: start it "
         "with srun --mpi=pmix (srun --mpi=list shows whether this Slurm has it), or with mpirun";
}

}  // namespace horon::core

// How this process was started, by what launchers leave in its environment.
#pragma once

#include <string>
#include <string_view>

namespace horon::core {

// What is wrong with the launch of a process for which MPI knows of `world_size` processes: it is
// one, although a launcher has started several, or a Slurm batch script for several tasks has
// started it directly. Then each process would silently train alone. Empty: nothing is wrong.
std::string launch_fault(int world_size);
void warn_of_launch(int world_size);  // logs it

// What the introduction of a job adds for a process that no launcher seems to have started; else
// empty.
std::string_view launch_remark(int world_size);

// What to change if srun has started this process without PMIx: Open MPI then ends it in
// MPI_Init(), with a text that blames how Slurm was built. Empty: nothing. `mpi_version`:
// MpiLibrary::version().
std::string missing_pmix(std::string_view mpi_version);

// The cores that the mpirun of this host may use, which has started this process; 0: not known.
int cores_of_mpirun();

}  // namespace horon::core

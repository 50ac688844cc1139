// How this process was started, by what launchers leave in its environment.
#pragma once

#include <string>
#include <string_view>

namespace horon::core {

// What is wrong where MPI knows of `world_size` processes: one, where a launcher has started
// several, or where a batch script of Slurm's for several tasks has started it itself. Each of them
// would train apart from the others, in silence. Empty: nothing is.
std::string launch_fault(int world_size);
void warn_of_launch(int world_size);  // logs it

// What the introduction of a job adds for a process that no launcher seems to have started; else
// empty.
std::string_view launch_remark(int world_size);

// What to change where Open MPI will end this process in MPI_Init(), with a text about how Slurm
// was built: srun has started it without PMIx. Empty: nothing. `mpi_version`:
// MpiLibrary::version().
std::string missing_pmix(std::string_view mpi_version);

}  // namespace horon::core

// What a test program that runs under mpirun knows about itself; its main() is mpi_main.cc.
//
// Options besides gtest's:
// --file=NAME[,NAME...]: of the tests that --gtest_filter takes, runs only those that stand in
// NAME.cc. For a program that is made of several files.
// --watchdog-s=N: a test that is still running N seconds after the program's start is named on
// every rank and the job is aborted. ctest passes it, a part of the test's TIMEOUT; without it
// nothing is aborted, so that a debugger has time.
#pragma once

// Rank and size in MPI_COMM_WORLD; 0 and 1 while MPI is not initialised.
int test_rank();
int test_size();

// Whether main() initialises MPI (MPI_THREAD_MULTIPLE) before the tests and finalises it after
// them. A program that tests how Horon itself initialises MPI defines this function to return
// false. Then the ranks agree on the verdict only if MPI still runs after the last test; otherwise
// mpirun takes the verdict from the exit codes.
bool test_main_starts_mpi();

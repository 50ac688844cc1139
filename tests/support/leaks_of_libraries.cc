// Linked into tests under mpirun with LeakSanitizer: libraries that the program loads stay loaded.
// Open MPI unloads its components in MPI_Finalize; what they leave would then be found as leaks of
// nobody, which no suppression can name.
extern "C" int dlclose(void*) { return 0; }

// Allocations of libraries without frame pointers get whole stacks too, by slower unwinding: these
// name the library.
extern "C" const char* __asan_default_options() { return "fast_unwind_on_malloc=0"; }

"""For children that multiprocessing starts anew (spawn, forkserver): they run the program's file
again, and have the parent's sys.path, but not its modules."""

from horon import as_horovod

as_horovod.install()

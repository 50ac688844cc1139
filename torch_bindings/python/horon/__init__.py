"""Horon: data-parallel training over MPI, for PyTorch.

    import horon.torch as hvd        Horovod's calls, with their meaning
    init_process_group("horon")      PyTorch's own (DDP, FSDP2, ...), without an import

Errors are horon.errors.Error. Nothing is loaded before it is used.
"""

"""The exceptions that Horon raises.

What leaves loss.backward() is a plain RuntimeError with the same text: PyTorch lets no other
exception of C++ pass.
"""


class Error(RuntimeError):
    """Names the tensor, the ranks and the cure.

    code: "mismatch", "peer dead", "stall", ... as horon::ErrorCode.
    """

    code = ""


class UsageError(Error, ValueError):
    """This call is wrong, whatever the other ranks do."""


class HorovodInternalError(Error):
    """A collective could not be carried out: ranks disagree, stall, or have died."""


class HorovodVersionMismatchError(ImportError):
    """Never raised: a module that does not fit is a plain ImportError."""


class HostsUpdatedInterrupt(RuntimeError):
    """An elastic job has other hosts: its ranks end, to be started again on those."""


_OF_THE_CALLER = {"invalid argument", "duplicate name", "not initialized", "configuration"}


_IN_PYTHON = {"horon::init()": "horon.torch.init()", "horon::shutdown()": "horon.torch.shutdown()",
              "horon::device()": "hvd.device()",
              "Call MPI_Init_thread() yourself": "Import mpi4py.MPI first",
              "destroy that one first (in Python: del optimizer)":
                  "call release() of that optimizer on all ranks first"}


def make(code, text):
    """The exception of an error of C++."""
    for there, here in _IN_PYTHON.items():
        text = text.replace(there, here)
    error = (UsageError if code in _OF_THE_CALLER else HorovodInternalError)(text)
    error.code = code
    return error

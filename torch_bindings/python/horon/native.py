"""The C++ of the package. The first import raises ImportError with the cure if it does not fit."""

import torch  # its libraries must be in the process before the module is loaded

try:
    from horon import _native
except ImportError as error:
    raise ImportError(
        f"the module of horon can't be loaded with this Python and torch {torch.__version__}: "
        f"{error}. Install horon again in this environment: pip install ./torch_bindings/python"
    ) from error


def _minor(version):
    return version.split("+")[0].split(".")[:2]


if _minor(torch.__version__) != _minor(_native.torch_version):
    raise ImportError(
        f"horon was built for torch {_native.torch_version}, but this is torch "
        f"{torch.__version__}, whose C++ interface differs. Install horon again: "
        "pip install ./torch_bindings/python")

from horon._native import *  # noqa: E402,F401,F403
